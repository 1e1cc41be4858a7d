"""The complete state of a commit as it is given to another rank, and a digest of it."""

from __future__ import annotations

import ctypes
import json
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elastic_runtime.parts import json_tensors
from elastic_runtime.parts.module_part import ModulePart
from elastic_runtime.parts.optimizer_part import OptimizerPart
from elastic_runtime.parts.part import same_keys
from elastic_runtime.parts.saved_parts import of_part
from elastic_runtime.parts.tensor_form import TensorForm
from elastic_runtime.parts.tensor_memory import receives, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.parts.part import Flat, StatePart

# How much of each tensor the digest looks at.
_SAMPLE_BYTES = 4096


class CommitImage(NamedTuple):
    """The whole state of a commit.

    Attributes:
        meta: for JSON: ``content``, what there is by key; ``tensors``, the form of each;
            ``alike``, of which of them all ranks of one commit have the same value: a buffer may
            differ from rank to rank, a parameter not; and what its owner has added.
        tensors: those in use, not copies; they change with the next step.
    """

    meta: dict[str, Any]
    tensors: list[torch.Tensor]

    @classmethod
    def of(cls, parts: Sequence[StatePart], **more: Any) -> CommitImage:
        """That of these parts.

        Args:
            parts: what is given away.
            **more: JSON that goes with it.

        Raises:
            UsageError: a state dict holds something that cannot be given away.
        """
        content: Flat = {}
        tensors: list[torch.Tensor] = []
        alike: list[int] = []
        for part in parts:
            differ = part.may_differ()
            for key, value in part.whole().items():
                if _is_trained(part) and torch.is_tensor(value) and key not in differ:
                    alike.append(len(tensors))
                content[key] = json_tensors.encode(value, key, tensors)
        forms = [TensorForm.of(tensor).as_json() for tensor in tensors]
        names = [part.name for part in parts]
        meta = {"parts": names, "content": content, "tensors": forms, "alike": alike, **more}
        return cls(meta, tensors)

    @property
    def digest(self) -> int:
        """A number that is the same for two images that hold the same.

        It covers all plain values, names, shapes and types, and a sample of each tensor.
        """
        words = {key: json_tensors.canonical(one) for key, one in self.meta["content"].items()}
        # What a rank has learned of its script is no part of its state, and what it has for itself
        # differs.
        more = {k: v for k, v in self.meta.items() if k not in ("content", "shadow", "own")}
        digest = zlib.crc32(json.dumps([words, more], sort_keys=True).encode())
        return sampled_digest(self.tensors, digest)


def check_image(parts: Sequence[StatePart], meta: dict[str, Any]) -> None:
    """Finds out whether the state of another rank fits the parts of this one.

    Raises:
        UsageError: it does not; the message names what differs.
    """
    same_keys("the objects of the State", {p.name: p for p in parts}, dict.fromkeys(meta["parts"]))
    there = _decoded(meta, forms_of(meta))
    for part in parts:
        part.check(of_part(part, there))


def present(parts: Sequence[StatePart], meta: dict[str, Any]) -> list[torch.Tensor | None]:
    """For each tensor of an image the one of the same form that has its place here.

    Args:
        parts: of this rank.
        meta: of the image.
    """
    held = [part.whole() for part in parts if _is_trained(part)]
    here = {key: value for flat in held for key, value in flat.items()}
    forms = forms_of(meta)
    found: list[torch.Tensor | None] = [None] * len(forms)
    for key, structure in meta["content"].items():
        own = here.get(key)
        if json_tensors.is_tensor(structure) and isinstance(own, torch.Tensor):
            number = structure[1]
            if TensorForm.of(own) == forms[number]:
                found[number] = own.detach()
    return found


def destinations(parts: Sequence[StatePart], meta: dict[str, Any]) -> list[torch.Tensor | None]:
    """Where the tensors of another rank's state may be received without a copy.

    Args:
        parts: of this rank; they fit.
        meta: of the image.

    Returns:
        For each tensor this rank's own memory for it; None: it must be received elsewhere.
    """
    return [one if one is not None and receives(one) else None for one in present(parts, meta)]


def take_image(
    parts: Sequence[StatePart], meta: dict[str, Any], tensors: list[torch.Tensor]
) -> None:
    """Replaces what all parts hold by what another rank has given.

    Args:
        parts: of this rank; they fit.
        meta: of the image.
        tensors: of the image, on any device; they belong to the parts from now on. What is at the
            same place in memory as a part's own tensor is there already.
    """
    placed: list[torch.Tensor] = []
    with torch.no_grad():
        held = zip(present(parts, meta), forms_of(meta), tensors, strict=True)
        for target, form, source in held:
            if target is None:
                placed.append(source.to(form.device) if source.is_cpu else source)
                continue
            if target.data_ptr() != source.data_ptr():
                write(target, source)
            placed.append(target)
        given = _decoded(meta, placed)
        for part in parts:
            part.take(of_part(part, given))


def forms_of(meta: dict[str, Any]) -> list[TensorForm]:
    """The forms of all tensors of an image."""
    return [TensorForm.from_json(each) for each in meta["tensors"]]


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a contiguous CPU tensor, without NumPy."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """At most about 4 KiB of a tensor, evenly spread."""
    stride = -(-tensor.nbytes // _SAMPLE_BYTES)
    return tensor.reshape(-1)[:: max(1, stride)]


def sampled_digest(tensors: Sequence[torch.Tensor], digest: int) -> int:
    """A number for a sample of each of some tensors.

    Args:
        tensors: the same ones, in the same order and on the same devices, wherever it is compared.
        digest: of what comes before.
    """
    devices: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            sample = sample_of(tensor.detach()).contiguous().view(torch.uint8)
            devices.setdefault(tensor.device, []).append(sample)
    for samples in devices.values():  # from each device at once
        digest = zlib.crc32(tensor_bytes(torch.cat(samples).cpu()), digest)
    return digest


def _is_trained(part: StatePart) -> bool:
    """Whether its tensors are as large as the model, and stay in their places."""
    return isinstance(part, ModulePart | OptimizerPart)


def _decoded(meta: dict[str, Any], tensors: Sequence[Any]) -> Flat:
    return {key: json_tensors.decode(one, tensors) for key, one in meta["content"].items()}
