"""Parts of a checkpoint come back where they are wanted, in any world, or the damage is named."""

from __future__ import annotations

import itertools
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_runtime.checkpoint.entries.tensor_memory import bytes_of
from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.stored_items import StoredTensor
from elastic_runtime.checkpoint.load import part_reader
from elastic_runtime.checkpoint.load.load_run import contents_of
from elastic_runtime.checkpoint.load.part_reader import TensorTarget
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.limits import MAX_LISTED_PARTS
from tests.checkpoints import sharded, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from elastic_runtime.checkpoint.format.manifest import CheckpointId
    from elastic_runtime.checkpoint.format.stored_items import Stored

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def numbers(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    raw = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
    return raw.view(dtype).reshape(tuple(shape))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    raw = [bytes(bytes_of(tensor.contiguous())) for tensor in (one, other)]
    return one.shape == other.shape and raw[0] == raw[1]


def held_by(whole: torch.Tensor, dim: int | None, world: int) -> list[dict[str, Any]]:
    """What each rank holds of a tensor: all of it (``dim`` None), or a shard."""
    if dim is None:
        return [{"w": whole} for _ in range(world)]
    return [{"w": shard} for shard in sharded(whole, dim, world)]


def targets(whole: torch.Tensor, dim: int | None, world: int, step: int = 1) -> list[TensorTarget]:
    """Room for the same, in steps of ``step`` elements of memory."""
    chunks = (
        [Chunk.of(tuple(whole.shape))] * world
        if dim is None
        else [shard.chunk for shard in sharded(whole, dim, world)]
    )
    found = []
    for chunk in chunks:
        memory = torch.zeros(*chunk.sizes, step, dtype=torch.uint8).to(whole.dtype)
        found.append(
            TensorTarget(chunk, memory[..., 0] if step > 1 else memory.reshape(chunk.sizes))
        )
    return found


def found_in(storage: LocalStorage, which: CheckpointId, **wanted: Chunk) -> Mapping[str, Stored]:
    manifest = storage.read_manifest(which)
    assert manifest is not None
    return contents_of(storage, manifest).find(wanted)


def load(storage: LocalStorage, which: CheckpointId, wanted: TensorTarget) -> torch.Tensor:
    stored = found_in(storage, which, w=wanted.chunk)["w"]
    assert isinstance(stored, StoredTensor)
    fetches = [part_reader.fetch_tensor(piece, stored.dtype, [wanted]) for piece in stored.pieces]
    part_reader.read(storage, which, [fetch for fetch in fetches if fetch is not None])
    return wanted.tensor


def check(whole: torch.Tensor, before: Any, after: Any, step: int, many: int) -> None:
    """Saves in one world and loads in another; each is a dimension or None, and a size."""
    with tempfile.TemporaryDirectory() as directory:
        storage = LocalStorage(directory)
        which = write(storage, held_by(whole, *before), many=many)
        for target in targets(whole, *after, step):
            found = load(storage, which, target)
            expected = (
                whole[Chunk.of(tuple(whole.shape)).index(target.chunk)] if whole.dim() else whole
            )
            assert same(found, expected)


WORLDS = st.integers(1, 8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 17]), max_size=3),
    st.sampled_from(DTYPES),
    st.data(),
)
def test_any_world_to_any_world(shape: list[int], dtype: torch.dtype, data: st.DataObject) -> None:
    dims = st.sampled_from([None, *range(len(shape))])
    whole = numbers(shape, dtype)
    before, after = (data.draw(st.tuples(dims, WORLDS)) for _ in range(2))
    step, many = (
        data.draw(st.sampled_from([1, 3])),
        data.draw(st.sampled_from([MAX_LISTED_PARTS, 0])),
    )
    check(whole, before, after, step, many)


@pytest.mark.parametrize("many", [MAX_LISTED_PARTS, 0])
def test_every_pair_of_worlds(tmp_path: Path, many: int) -> None:
    whole = torch.arange(11 * 3).reshape(11, 3)
    storage = LocalStorage(tmp_path)
    worlds = list(itertools.product((None, 0), range(1, 9)))
    for step, (dim, world) in enumerate(worlds):
        which = write(storage, held_by(whole, dim, world), step, many=many)
        for after in worlds:
            for target in targets(whole, *after):
                found = load(storage, which, target)
                assert torch.equal(found, whole[Chunk.of((11, 3)).index(target.chunk)])


def test_what_lies_in_one_run_of_memory_is_read_without_a_copy(tmp_path: Path) -> None:
    """So that the memory that a load takes does not depend on how it was saved."""
    whole = torch.arange(60.0).reshape(12, 5)
    storage = LocalStorage(tmp_path)
    which = write(storage, held_by(whole, 0, 3))
    stored = found_in(storage, which)["w"]
    assert isinstance(stored, StoredTensor)
    for target in targets(whole, 0, 4):
        for piece in stored.pieces:
            fetch = part_reader.fetch_tensor(piece, stored.dtype, [target])
            if fetch is not None:
                room = fetch.destination()
                assert room is not None
                mine = target.tensor.untyped_storage().data_ptr()
                assert room.tensor.untyped_storage().data_ptr() == mine


@pytest.mark.parametrize("size", [1, 5_000_000])  # a batch, and many
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, size: int) -> None:
    storage = LocalStorage(tmp_path)
    which = write(storage, [{"w": torch.ones(size, dtype=torch.uint8)}])
    path = tmp_path / which.name / "rank-0.distcp"
    whole = path.read_bytes()
    load(storage, which, TensorTarget(Chunk.of((size,)), torch.empty(size, dtype=torch.uint8)))
    places = range(len(whole)) if size == 1 else range(0, len(whole), len(whole) // 40)
    for place in places:
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ 1 << place % 8]))
        with pytest.raises(DamagedCheckpoint, match=r"rank-0\.distcp is damaged"):
            load(
                storage,
                which,
                TensorTarget(Chunk.of((size,)), torch.empty(size, dtype=torch.uint8)),
            )
        with path.open("r+b") as file:
            file.seek(place)
            file.write(whole[place : place + 1])


def test_a_file_that_became_shorter_is_damaged(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    which = write(storage, [{"w": torch.ones(1000)}])
    path = tmp_path / which.name / "rank-0.distcp"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedCheckpoint, match=r"rank-0\.distcp is damaged: it ends at byte"):
        load(storage, which, TensorTarget(Chunk.of((1000,)), torch.empty(1000)))


def test_another_dtype_is_converted(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    which = write(storage, [{"w": torch.arange(5.0)}])
    found = load(storage, which, TensorTarget(Chunk.of((5,)), torch.empty(5, dtype=torch.bfloat16)))
    assert found.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    which = write(storage, [{"w": torch.ones(3_000_000), "v": torch.ones(7)}])
    manifest = storage.read_manifest(which)
    assert manifest is not None
    fetches = []
    for stored in found_in(storage, which).values():
        assert isinstance(stored, StoredTensor)
        target = TensorTarget(Chunk.of(stored.shape), torch.empty(stored.shape))
        fetches += [
            part_reader.fetch_tensor(piece, stored.dtype, [target]) for piece in stored.pieces
        ]
    told: list[int] = []
    part_reader.read(storage, which, [fetch for fetch in fetches if fetch], told.append)
    assert sum(told) == next(f.bytes for f in manifest.files if f.name == "rank-0.distcp")
