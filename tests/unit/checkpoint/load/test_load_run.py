"""Which state a job goes on from, and that all of it is good before anything is taken over."""

from __future__ import annotations

import logging
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import elastic_runtime as elastic
from elastic_runtime import State
from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.format.stored_items import StoredTensor
from elastic_runtime.checkpoint.load import part_reader
from elastic_runtime.checkpoint.load.load_run import LoadRun, contents_of
from elastic_runtime.checkpoint.load.newest_state import (
    NodeSnapshot,
    ResumeCandidate,
    other_holders,
    resume_candidates,
)
from elastic_runtime.checkpoint.load.part_reader import TensorTarget
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import (
    CheckpointError,
    CheckpointUsageError,
    DamagedCheckpoint,
    NoCheckpoint,
)
from elastic_runtime.limits import MAX_LISTED_PARTS
from elastic_runtime.worker.recovery.recovery_source import StateVersion
from tests.checkpoints import sharded, write
from tests.ranks import saves
from tests.trained import cut_off, trained
from tests.unit.checkpoint.states import save, state_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from elastic_runtime.checkpoint.format.stored_items import Stored


class Saved:
    """A checkpoint of a model with one weight, and of a number; and a State to load it into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = nn.Linear(2, 1, bias=False)
        save(path, {"model": self.model, "count": 7, "generators": False})
        self.folder = path / "step-1.term-1"
        self.file = self.folder / "rank-0.distcp"
        self.mine = nn.Linear(2, 1, bias=False)
        self.before = self.mine.weight.detach().clone()
        self.state = State(model=self.mine, count=1)

    def load(self, **options: Any) -> int:
        return elastic.load(self.path, self.state, **options)

    @property
    def untouched(self) -> bool:
        return bool(torch.equal(self.mine.weight, self.before)) and self.state.count == 1

    def damage(self, part: str) -> None:
        """Flips a bit of the tensor or of a value; the size stays."""
        content = self.file.read_bytes()
        weight = content.index(self.model.weight.detach().numpy().tobytes())
        value = content.rindex(b"PK")  # torch writes archives
        flip(self.file, weight if part == "tensor" else value)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "runs")


def flip(file: Path, place: int | None = None) -> None:
    """Changes a byte of a file; None: in its middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    file.write_bytes(content)


def test_everything_comes_back(saved: Saved) -> None:
    assert saved.load() == 1
    assert torch.equal(saved.mine.weight, saved.model.weight)
    assert (saved.state.count, saved.state.step) == (7, 1)


def test_a_damaged_tensor_is_no_state(saved: Saved) -> None:
    saved.damage("tensor")
    with pytest.raises(DamagedCheckpoint, match=r"rank-0\.distcp"):
        saved.load()
    assert (saved.state.count, saved.state.step) == (1, 0)


def test_no_tensor_is_touched_before_all_values_are_known_to_be_good(saved: Saved) -> None:
    saved.damage("value")
    with pytest.raises(DamagedCheckpoint):
        saved.load()
    assert saved.untouched


def test_a_file_of_another_size_is_seen_before_anything_is_read(saved: Saved) -> None:
    size = saved.file.stat().st_size
    saved.file.write_bytes(b"short")
    with pytest.raises(DamagedCheckpoint, match=f"damaged: 5 bytes instead of {size}"):
        saved.load()
    saved.file.unlink()
    with pytest.raises(DamagedCheckpoint, match=r"rank-0\.distcp is missing"):
        saved.load()
    assert saved.untouched


def test_a_checkpoint_that_is_deleted_meanwhile_is_said_to_be_gone(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = LoadRun.read

    def deleted_before(run: LoadRun) -> Any:
        shutil.rmtree(saved.folder)
        return read(run)

    monkeypatch.setattr(LoadRun, "read", deleted_before)
    with pytest.raises(DamagedCheckpoint, match="was deleted while it was being read"):
        saved.load()


def test_a_step_that_is_not_there_is_told_with_those_that_are(saved: Saved) -> None:
    with pytest.raises(NoCheckpoint, match=r"not a checkpoint of step 9 in .*steps there: 1$"):
        saved.load(step=9)
    assert saved.load(step=1) == 1


def test_other_keys_are_an_error_unless_they_are_allowed(
    saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    more, before = nn.Linear(1, 1, bias=False), 0.25
    nn.init.constant_(more.weight, before)
    saved.state = State(more=more, other=3, model=saved.mine)
    missing = r"it lacks other, more\.weight;"
    with pytest.raises(CheckpointUsageError, match=missing):
        saved.load()
    assert saved.load(strict=False) == 1
    assert torch.equal(saved.mine.weight, saved.model.weight)
    assert (saved.state.other, more.weight.item()) == (3, before)

    state = state_in(saved.path, {"more": more})
    with pytest.raises(CheckpointUsageError, match=r"it also has model\.weight;"), trained(state):
        pass
    another = State(net=nn.Linear(2, 2), best=0)
    with pytest.raises(CheckpointUsageError, match="it belongs to another one"):
        elastic.load(saved.path, another, strict=False)
    state = state_in(saved.path, {"more": more, "model": saved.mine})
    with cut_off(state, strict=False):
        assert state.step == 1
    assert "checkpoint.partly" in caplog.text
    assert "'missing': ['more.weight']" in caplog.text


# Parts of a checkpoint come back where they are wanted, in any world, or the damage is named


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.float8_e4m3fn]


def numbers(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    raw = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
    return raw.view(dtype).reshape(tuple(shape))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(one.tolist() == other.tolist())


def held_by(whole: torch.Tensor, dim: int | None, world: int) -> list[dict[str, Any]]:
    """What each rank holds of a tensor: all of it (``dim`` None), or a shard."""
    if dim is None:
        return [{"w": whole} for _ in range(world)]
    return [{"w": shard} for shard in sharded(whole, dim, world)]


def targets(whole: torch.Tensor, dim: int | None, world: int, step: int = 1) -> list[TensorTarget]:
    """Room for the same, in steps of ``step`` elements of memory."""
    chunks = [Chunk.of(tuple(whole.shape))] * world
    if dim is not None:
        chunks = [shard.chunk for shard in sharded(whole, dim, world)]
    rooms = [torch.zeros(*chunk.sizes, step, dtype=torch.uint8).to(whole.dtype) for chunk in chunks]
    return [
        TensorTarget(chunk, room[..., 0] if step > 1 else room.reshape(chunk.sizes))
        for chunk, room in zip(chunks, rooms, strict=True)
    ]


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
            index = Chunk.of(tuple(whole.shape)).index(target.chunk)
            assert same(load(storage, which, target), whole[index] if whole.dim() else whole)


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 17]), max_size=3), st.sampled_from(DTYPES), st.data()
)
def test_any_world_to_any_world(shape: list[int], dtype: torch.dtype, data: st.DataObject) -> None:
    worlds = st.tuples(st.sampled_from([None, *range(len(shape))]), st.integers(1, 8))
    step, many = st.sampled_from([1, 3]), st.sampled_from([MAX_LISTED_PARTS, 0])
    check(numbers(shape, dtype), *map(data.draw, (worlds, worlds, step, many)))


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
    target = TensorTarget(Chunk.of((size,)), torch.empty(size, dtype=torch.uint8))
    load(storage, which, target)
    places = range(len(whole)) if size == 1 else range(0, len(whole), len(whole) // 40)
    for place in places:
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ 1 << place % 8]))
        with pytest.raises(DamagedCheckpoint, match=r"rank-0\.distcp is damaged"):
            load(storage, which, target)
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


# Which state a job goes on from: the newest that is whole, and nothing of any other


def test_the_newest_term_wins_over_a_higher_step(tmp_path: Path) -> None:
    behind = state_in(tmp_path, {"who": "first"}, every=1, sync=True)
    with cut_off(behind):
        for _ in range(3):
            behind.commit()
        hidden = [tmp_path / f"step-{step}.term-1" / "rank-0.distcp" for step in (2, 3)]
        for file in hidden:
            file.rename(file.with_name("away"))
        newer = state_in(tmp_path, {"who": ""})
        with trained(newer):
            assert (newer.step, newer.who) == (1, "first")
            newer.who = "second"
            newer.commit()
        for file in hidden:
            file.with_name("away").rename(file)
        with pytest.raises(CheckpointError, match="term 2"):
            behind.commit()
    third = state_in(tmp_path, {"who": ""})
    with cut_off(third):
        assert (third.step, third.who) == (2, "second")
    steps = ["step-1.term-1", "step-2.term-1", "step-2.term-2", "step-3.term-1"]
    assert saves(tmp_path) == steps


def test_damage_is_named_and_the_next_older_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {"a": 0, "generators": False}
    state = state_in(tmp_path, parts, every=1, sync=True)
    with cut_off(state):
        for state.a in (1, 2, 3):
            state.commit()
    flip(tmp_path / "step-3.term-1" / "rank-0.distcp")
    (tmp_path / "step-2.term-1" / "rank-0.distcp").unlink()
    assert elastic.load(tmp_path, State(a=0)) == 1
    state = state_in(tmp_path, parts)
    with cut_off(state):
        assert (state.step, state.a) == (1, 1)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "step-3.term-1/rank-0.distcp" in told[0]
    assert "step-2.term-1/rank-0.distcp" in told[1]


def test_a_job_with_only_damaged_checkpoints_does_not_start_anew(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "step-1.term-1" / MANIFEST).write_text("{}")
    with pytest.raises(DamagedCheckpoint, match=r"no checkpoint .* is whole"):
        save(tmp_path)
    with pytest.raises(DamagedCheckpoint):
        elastic.load(tmp_path, State(a=0))


def test_nothing_of_a_damaged_checkpoint_stays_in_what_an_older_one_lacks(tmp_path: Path) -> None:
    def model(*sizes: int) -> nn.Sequential:
        return nn.Sequential(*(nn.Linear(size, size) for size in sizes))

    save(tmp_path, {"model": model(2)})
    grown = model(2, 50)
    state = state_in(tmp_path, {"model": grown})
    with trained(state, strict=False):
        assert state.step == 1
        state.commit()
    shard = tmp_path / "step-2.term-2" / "rank-0.distcp"
    flip(shard, shard.read_bytes().index(grown[1].weight.detach().numpy().tobytes()) + 100)
    fresh = model(2, 50)
    before = fresh[1].weight.detach().clone()
    state = state_in(tmp_path, {"model": fresh})
    with cut_off(state, strict=False):
        assert state.step == 1
    assert torch.equal(fresh[1].weight, before)


def test_what_is_in_memory_is_touched_by_nothing_that_is_not_newer_and_whole(
    tmp_path: Path,
) -> None:
    """As a rank in place looks for what is newer than its memory."""
    model = nn.Linear(40, 40)
    state = state_in(tmp_path, {"model": model}, every=1, sync=True)
    with cut_off(state):
        for step in (1, 2, 3):
            nn.init.constant_(model.weight, step)
            state.commit()
        flip(tmp_path / "step-3.term-1" / "rank-0.distcp")
        nn.init.constant_(model.weight, 9)
        saver = state._saver
        assert saver is not None
        assert saver.load(StateVersion(1, 2)) is None, "the newer one is damaged, the other older"
        assert saver.load(StateVersion(2, 0)) is None, "of a newer term than all that is there"
        assert model.weight.eq(9).all()
        assert saver.load(StateVersion(1, 1)) == StateVersion(1, 2)
        assert model.weight.eq(2).all()


# Which state a job goes on from, and which node has what


FILES = (".metadata", "rank-0.distcp", "rank-1.distcp")


def at(step: int, term: int = 1) -> CheckpointId:
    return CheckpointId(term=term, step=step)


def offer(which: CheckpointId, *present: str, manifest_crc: int = 7) -> NodeSnapshot:
    return NodeSnapshot(which, manifest_crc, FILES, present)


def usable(found: list[ResumeCandidate]) -> list[tuple[CheckpointId, bool]]:
    return [
        (candidate.which, candidate.places is not None)
        for candidate in found
        if not candidate.problem
    ]


def test_the_newest_comes_first_and_memory_before_storage() -> None:
    nodes = [[offer(at(5), *FILES), offer(at(9), *FILES)]]
    found = resume_candidates(nodes, [at(9), at(3), at(1, term=2)])
    expected = [(at(1, 2), False), (at(9), True), (at(9), False), (at(5), True), (at(3), False)]
    assert usable(found) == expected


def test_nodes_complete_each_other() -> None:
    nodes = [[offer(at(5), FILES[0], FILES[1])], [offer(at(5), FILES[0], FILES[2])], []]
    (candidate,) = resume_candidates(nodes, [])
    assert not candidate.problem
    assert candidate.places == {MANIFEST: (0, 1), FILES[0]: (0, 1), FILES[1]: (0,), FILES[2]: (1,)}
    assert other_holders(candidate, 0) == {FILES[2]: 1}
    assert set(other_holders(candidate, 2)) == {MANIFEST, *FILES}


def test_what_nobody_has_is_named() -> None:
    (candidate, older) = resume_candidates([[offer(at(5), FILES[0], FILES[1])]], [at(2)])
    assert "rank-1.distcp" in candidate.problem
    assert older == ResumeCandidate(at(2))


def test_snapshots_with_other_manifests_do_not_complete_each_other() -> None:
    nodes = [[offer(at(5), *FILES[:2], manifest_crc=1)], [offer(at(5), *FILES[1:], manifest_crc=2)]]
    assert all(candidate.problem for candidate in resume_candidates(nodes, []))


def test_what_is_told_is_json() -> None:
    made = offer(at(5, 3), *FILES)
    assert NodeSnapshot.decode(made.encode()) == made
