"""Snapshots of one process: taken, gone on from, refused, given up."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.save.save_term import SaveTerm
from elastic_runtime.checkpoint.save_interval import Every
from elastic_runtime.checkpoint.snapshot.snapshot_scheduler import SnapshotScheduler
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.protocol.snapshot_requests import ENV_SNAPSHOTS, SnapshotMemory
from elastic_runtime.worker import context as contexts
from elastic_runtime.worker.agreement import Foreseen, Wish
from elastic_runtime.worker.peers import Peers
from tests.unit.checkpoint.snapshot.memories import memory_of

WHICH = CheckpointId(term=1, step=3)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotMemory:
    """A worker's environment, as far as snapshots are concerned."""
    path = tmp_path / "memory"
    path.mkdir()
    memory = memory_of(path)
    here = contexts.WorkerContext({ENV_SNAPSHOTS: memory.encode()})
    monkeypatch.setattr(contexts, "_context", here)
    return memory


def make(tmp_path: Path, **settings: Any) -> tuple[Checkpointer, torch.nn.Module]:
    model = torch.nn.Linear(3, 3)
    return Checkpointer(tmp_path / "runs", {"model": model}, **settings), model


def take(ckpt: Checkpointer, steps: int = 1) -> None:
    for _ in range(steps):
        ckpt.step()
        ckpt.wait()


def kept(agent: SnapshotMemory, tmp_path: Path) -> list[str]:
    return sorted(path.name for path in Path(agent.directory).glob("*/step-*"))


def test_the_newest_is_kept_and_is_where_a_job_goes_on(
    agent: SnapshotMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ckpt, model = make(tmp_path, snapshot_every=4)
    take(ckpt, 9)
    assert kept(agent, tmp_path) == ["step-8.term-1"]
    assert ckpt.saved_step == 0  # nothing is stored
    other, its = make(tmp_path, snapshot_every=4)
    assert other.resume() == 8
    assert torch.equal(its.weight, model.weight)
    assert "'source': 'memory'" in caplog.text
    other.save(sync=True)
    assert (tmp_path / "runs" / "step-8.term-2").is_dir()
    ckpt.close()
    other.close()


def test_a_newer_checkpoint_wins_and_ends_the_snapshot(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    ckpt, _ = make(tmp_path, snapshot_every=4)
    take(ckpt, 5)
    ckpt.save(sync=True)
    assert kept(agent, tmp_path) == ["step-4.term-1"]
    assert make(tmp_path, snapshot_every=4)[0].resume() == 5
    assert not kept(agent, tmp_path)
    ckpt.close()


def test_a_place_that_forgot_its_terms_comes_after_what_is_in_memory(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    for step in (4, 8):
        ckpt, _ = make(tmp_path, snapshot_every=4)
        assert ckpt.resume() == step - 4
        take(ckpt, 4)
        ckpt.close()
    assert kept(agent, tmp_path) == ["step-8.term-2"]
    (tmp_path / "runs" / "term-2").unlink()
    ckpt, _ = make(tmp_path, snapshot_every=4)
    assert ckpt.resume() == 8
    take(ckpt, 4)
    assert kept(agent, tmp_path) == ["step-12.term-3"]
    ckpt.close()


def test_a_snapshot_is_left_out_while_anything_is_under_way(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    ckpt, _ = make(tmp_path, snapshot_every=4)
    take(ckpt, 3)
    ckpt.steps += 1
    ckpt._snapshot(Wish.SNAPSHOT | Wish.BUSY)
    ckpt.save()  # begins at the step at which the snapshot is agreed on
    ckpt._snapshot(Wish.SNAPSHOT)
    ckpt.wait()
    assert not kept(agent, tmp_path)
    ckpt.close()


def test_a_failure_costs_an_event_and_nothing_else(
    agent: SnapshotMemory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ckpt, _ = make(tmp_path, snapshot_every=4)
    take(ckpt, 4)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("elastic_runtime.checkpoint.storage.local_storage.LocalWriter.sync", full)
        take(ckpt, 4)
    assert "snapshot.failed" in caplog.text
    assert kept(agent, tmp_path) == ["step-4.term-1"]
    take(ckpt, 4)
    assert kept(agent, tmp_path) == ["step-12.term-1"]
    ckpt.close()


def test_an_incomplete_one_is_told_and_passed_over(
    agent: SnapshotMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt, _ = make(tmp_path, snapshot_every=4)
    ckpt.steps = 1
    ckpt.save(sync=True)
    take(ckpt, 3)
    (file,) = Path(agent.directory).glob("*/step-4.term-1/rank-0.distcp")
    file.unlink()
    assert make(tmp_path, snapshot_every=4)[0].resume() == 1
    assert "snapshot.incomplete" in caplog.text
    assert "rank-0.distcp" in caplog.text
    ckpt.close()


def test_without_an_agent_they_are_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ckpt, _ = make(tmp_path, snapshot_every=1)
    take(ckpt, 3)
    assert caplog.text.count("snapshot.off") == 1
    ckpt.close()


class _Beside(Peers):
    """There is another rank, whose agent has this memory for snapshots."""

    def __init__(self, memory: str) -> None:
        super().__init__()
        self.memory = memory
        self.asked = 0

    def gather(self, value: Any) -> list[Any]:
        self.asked += 1
        return [value, self.memory if isinstance(value, str) else value]


def test_a_rank_without_memory_is_asked_for_again_in_the_next_world(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    """A newcomer knows nothing of it and asks; whoever did not ask with it would never be heard."""
    storage = LocalStorage(tmp_path)
    context = contexts.context()
    snapshots = SnapshotScheduler(storage, SaveTerm(storage, context), Every(steps=1), context)
    peers = _Beside("")
    for _ in range(2):
        assert snapshots.resume_candidates(peers, [], None) == []
    assert (peers.asked, snapshots.wanted) == (1, False), "once in a world"
    snapshots.enter()
    assert snapshots.wanted
    peers.memory = agent.encode()
    snapshots.resume_candidates(peers, [], None)
    assert peers.asked > 2


def test_the_ranks_hear_in_time_when_a_snapshot_is_due(
    agent: SnapshotMemory, tmp_path: Path
) -> None:
    storage = LocalStorage(tmp_path)
    context = contexts.context()
    term = SaveTerm(storage, context)
    snapshots = SnapshotScheduler(storage, term, Every(steps=10), context)
    assert [snapshots.foreseen(step).steps for step in (3, 9, 10, 12)] == [7, 1, 0, 0]
    assert snapshots.wish(12) == Wish.SNAPSHOT
    assert snapshots.foreseen(12).steps == 8, "one is taken about now"
    snapshots.rest(13)
    assert snapshots.foreseen(13) == Foreseen(steps=7)
    assert SnapshotScheduler(storage, term, Every(), context).foreseen(3) == Foreseen()
    by_time = SnapshotScheduler(storage, term, Every(seconds=60.0), context)
    assert 50.0 < by_time.foreseen(3).seconds <= 60.0
