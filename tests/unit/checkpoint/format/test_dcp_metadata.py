"""What DCP is told is what its own objects would say."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp

from elastic_runtime.checkpoint.format import dcp_metadata
from elastic_runtime.checkpoint.format.manifest import FileRecord, Part
from elastic_runtime.checkpoint.format.metadata_reader import read_contents
from elastic_runtime.checkpoint.format.rank_outline import EvenCut, Item, chunk_of
from elastic_runtime.system.torch_formats import dcp_stored_item
from tests.checkpoints import plan_of

GIB = 1 << 30


def held(rank: int, world: int, tensors: int) -> list[Item]:
    """Tensors that are whole on all ranks, or cut along one dimension, and values."""
    found = []
    for number in range(tensors):
        shape = (5, 3 + number % 2)
        cuts = (EvenCut(0, world, rank), EvenCut(1, world, rank), None)
        cut = cuts[number % 3]
        offsets, sizes = chunk_of((cut,) if cut else (), shape)
        dtype = ("float32", "bfloat16")[number % 2]
        found.append(Item(f"w{number}", dtype, shape, offsets, sizes, 4))
    found.append(Item("scalar", "int64", (), (), (), 8))
    found.append(Item(f"rng.rank-{rank}"))
    return found if rank else [*found, Item("step")]


def objects(plan: Any, files: list[FileRecord]) -> dcp.Metadata:
    """The same, made of the classes that DCP has for it."""
    described: dict[str, Any] = {}
    places: dict[dcp.MetadataIndex, Any] = {}
    for rank, file in enumerate(files):
        for item, part in zip(plan.file(rank), file.parts, strict=True):
            place = dcp_stored_item()(file.name, part.offset, part.length)
            if not item.dtype:
                described[item.key] = dcp.BytesStorageMetadata()
                places[dcp.MetadataIndex(item.key)] = place
                continue
            properties = dcp.TensorProperties(dtype=getattr(torch, item.dtype))
            whole = dcp.TensorStorageMetadata(properties, torch.Size(item.shape), [])
            chunks = described.setdefault(item.key, whole).chunks
            places[dcp.MetadataIndex(item.key, item.offsets, len(chunks))] = place
            chunk = dcp.ChunkStorageMetadata(torch.Size(item.offsets), torch.Size(item.sizes))
            chunks.append(chunk)
    return dcp.Metadata(described, storage_data=places)


@pytest.mark.parametrize(
    ("world", "tensors", "length"),
    [
        (1, 0, 128),
        (1, 9, 128),
        (3, 9, 128),
        (7, 9, 3 * GIB),
        (3, 400, 128),
    ],  # more than a byte numbers
)
def test_the_pickle_is_that_of_the_objects(world: int, tensors: int, length: int) -> None:
    plan = plan_of([held(rank, world, tensors) for rank in range(world)])
    files = []
    for rank, sizes in enumerate(plan.sizes):
        parts = [
            Part(at * length, length, 1, 8 if size >= 0 else -1) for at, size in enumerate(sizes)
        ]
        files.append(FileRecord(f"rank-{rank}.distcp", len(parts) * length, 1, tuple(parts)))
    content, expected = dcp_metadata.encode(plan, files), objects(plan, files)
    found = pickle.loads(content)
    assert found == expected
    # An index is compared without its number, and objects without what they have beside.
    states = [
        [(vars(key), vars(place)) for key, place in each.storage_data.items()]
        for each in (found, pickle.loads(pickle.dumps(expected)))
    ]
    assert states[0] == states[1]
    assert read_contents("", content, files) == read_contents("", pickle.dumps(expected), files)
