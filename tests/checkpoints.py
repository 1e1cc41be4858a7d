"""Checkpoints as any number of ranks would write them, made in one process."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
from elastic_runtime.checkpoint.format.rank_outline import Item, say, text_digest
from elastic_runtime.checkpoint.save import save_executor, staging
from elastic_runtime.checkpoint.save.file_writer import write_description_file, write_file
from elastic_runtime.checkpoint.save.rank_share import WritePlans
from elastic_runtime.checkpoint.snapshot import snapshot_scheduler
from elastic_runtime.limits import MAX_LISTED_PARTS
from elastic_runtime.parts.optimizer_part import ParameterNames
from elastic_runtime.parts.saved_parts import SavedParts, part_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elastic_runtime.checkpoint.format.write_plan import WritePlan
    from elastic_runtime.checkpoint.storage.storage_contract import Storage


@contextmanager
def with_outline() -> Iterator[None]:
    """What this process saves meanwhile has an outline, however small it is."""
    always = partial(Description, 0)
    with (
        patch.object(save_executor, "Description", always),
        patch.object(snapshot_scheduler, "Description", always),
    ):
        yield


@dataclass(frozen=True)
class Shard:
    """A rank's part of a tensor.

    Attributes:
        shape: of the whole tensor.
        chunk: which part it is.
        tensor: the part.
    """

    shape: tuple[int, ...]
    chunk: Chunk
    tensor: torch.Tensor


def sharded(whole: torch.Tensor, dim: int, world: int) -> list[Shard]:
    """How FSDP2 spreads a tensor: chunks of the same size, the last ones shorter or empty."""
    size = -(-whole.shape[dim] // world)
    shards = []
    for rank in range(world):
        begin = min(rank * size, whole.shape[dim])
        end = min(begin + size, whole.shape[dim])
        offsets, sizes = [0] * whole.dim(), list(whole.shape)
        offsets[dim], sizes[dim] = begin, end - begin
        part = whole.narrow(dim, begin, end - begin)
        shards.append(Shard(tuple(whole.shape), Chunk(tuple(offsets), tuple(sizes)), part))
    return shards


def plan_of(held: Sequence[Sequence[Item]]) -> WritePlan:
    """The plan of ranks that hold this."""
    said = [say(items, rank, len(held)) for rank, items in enumerate(held)]
    digests = [[text_digest(part) for part in one.parts] for one in said]
    return WritePlans().of(digests, (part for one in said for part in one.parts))


def write(
    storage: Storage,
    ranks: Sequence[Mapping[str, Any]],
    step: int = 1,
    *,
    many: int = MAX_LISTED_PARTS,
) -> CheckpointId:
    """Writes a checkpoint.

    Args:
        storage: where to.
        ranks: what each of them holds, by key: tensors, shards, or other values.
        step: whose state it is.
        many: with more parts than that it has an outline.
    """
    which = CheckpointId(term=1, step=step)
    plan = plan_of([[_item(key, value) for key, value in state.items()] for state in ranks])
    storage.create(which)
    files = []
    for rank, state in enumerate(ranks):
        sources = [_source(state[item.key]) for item in plan.file(rank)]
        size = sum(source.size for source in sources)
        name = f"rank-{rank}.distcp"
        files.append(
            write_file(storage, which, name, size, sources, alone=False) if sources else None
        )
    described = Description(many).describe(plan, files)
    beside = [write_description_file(storage, which, one) for one in described.beside]
    present = (*described.files, *beside)
    storage.commit(Manifest(step=step, term=1, world=len(ranks), files=present))
    return which


def _item(key: str, value: Any) -> Item:
    if not isinstance(value, Shard):
        return staging.describe(key, value)
    dtype = str(value.tensor.dtype).removeprefix("torch.")
    return Item(
        key, dtype, value.shape, value.chunk.offsets, value.chunk.sizes, value.tensor.nbytes
    )


def _source(value: Any) -> staging.PartBytes:
    tensor = value.tensor if isinstance(value, Shard) else value
    if isinstance(tensor, torch.Tensor):
        return staging.of_tensor(tensor)
    return staging.of_value(tensor)


def parts_of(named: dict[str, Any]) -> SavedParts:
    """The parts of a State of these objects, without its values."""
    names = ParameterNames({n: one for n, one in named.items() if isinstance(one, torch.nn.Module)})
    found = [part_of(name, one, names) for name, one in named.items()]
    return SavedParts([part for part in found if part is not None])
