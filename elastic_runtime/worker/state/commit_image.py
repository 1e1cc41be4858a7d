"""The complete state of a commit as it is sent to another rank, and a digest of it."""

from __future__ import annotations

import ctypes
import json
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elastic_runtime.worker.state import json_tensors
from elastic_runtime.worker.state.state_parts import TensorForm, TensorNumber

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elastic_runtime.worker.state.state_parts import StatePart

# How much of each tensor the digest looks at.
_SAMPLE_BYTES = 4096


class CommitImage(NamedTuple):
    """The whole state of a commit.

    Attributes:
        meta: for JSON: the step, all plain values, and the form of each tensor.
        tensors: those in use, not copies; they change with the next step.
    """

    meta: dict[str, Any]
    tensors: list[torch.Tensor]


def own_tensors(
    parts: Iterable[StatePart], meta: dict[str, Any], count: int
) -> Iterator[tuple[TensorNumber, torch.Tensor, bool]]:
    """The tensors of this rank that take the place of those of an image.

    Args:
        parts: of this rank's State.
        meta: of the image.
        count: how many tensors that has.

    Yields:
        As ``StatePart.own_tensors``.
    """
    slots = [TensorNumber(number) for number in range(count)]
    for part in parts:
        yield from part.own_tensors(json_tensors.decode(meta["parts"][part.name], slots))


def present(parts: Iterable[StatePart], meta: dict[str, Any]) -> list[torch.Tensor | None]:
    """For each tensor of an image the one of the same form that has its place here.

    Args:
        parts: of this rank's State.
        meta: of the image.
    """
    forms = forms_of(meta)
    found: list[torch.Tensor | None] = [None] * len(forms)
    for slot, tensor, _ in own_tensors(parts, meta, len(forms)):
        if TensorForm.of(tensor) == forms[slot]:
            found[slot] = tensor.detach()
    return found


def digest_of(image: CommitImage) -> int:
    """A number that is the same for two images that hold the same.

    It covers all plain values, names, shapes and types, and a sample of each tensor.
    """
    meta, tensors = image
    words = {name: json_tensors.canonical(part) for name, part in meta["parts"].items()}
    # What a rank has learned of its script ("shadow") is no part of its state, and what it has for
    # itself ("own") differs.
    apart = ("parts", "shadow", "own")
    words |= {name: value for name, value in meta.items() if name not in apart}
    words |= {"values": json_tensors.canonical(meta["values"])}
    digest = zlib.crc32(json.dumps(words, sort_keys=True).encode())
    samples: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            samples.setdefault(tensor.device, []).append(_sample(tensor))
    # By the device of their first tensor, which is the same one on every rank.
    for parts in samples.values():
        digest = zlib.crc32(tensor_bytes(torch.cat(parts).cpu()), digest)
    return digest


def forms_of(meta: dict[str, Any]) -> list[TensorForm]:
    """The forms of all tensors of a image."""
    return [TensorForm(dtype, tuple(shape), device) for dtype, shape, device, _ in meta["tensors"]]


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a contiguous CPU tensor, without NumPy."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """At most about 4 KiB of a tensor, evenly spread."""
    stride = -(-tensor.nbytes // _SAMPLE_BYTES)
    return tensor.reshape(-1)[:: max(1, stride)]


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    return sample_of(tensor).contiguous().view(torch.uint8)
