"""Which state a job goes on from: the newest that is whole, and nothing of any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.entries.tensor_memory import bytes_of
from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.load.newest_state import (
    NodeSnapshot,
    ResumeCandidate,
    other_holders,
    resume_candidates,
)
from elastic_runtime.errors import CheckpointError, DamagedCheckpoint
from elastic_runtime.worker.recovery.recovery_source import StateVersion
from tests.ranks import saves

if TYPE_CHECKING:
    from pathlib import Path


def test_the_newest_term_wins_over_a_higher_step(tmp_path: Path) -> None:
    behind = Checkpointer(tmp_path, {"who": "first"}, every=1, sync=True)
    for _ in range(3):
        behind.step()
    newer = Checkpointer(tmp_path, {"who": "second"}, every=1, sync=True)
    newer.steps = 1
    newer.step()
    with pytest.raises(CheckpointError, match="term 2"):
        behind.step()
    third: dict[str, Any] = {"who": ""}
    assert Checkpointer(tmp_path, third).resume() == 2
    assert third["who"] == "second"
    steps = ["step-1.term-1", "step-2.term-1", "step-2.term-2", "step-3.term-1"]
    assert saves(tmp_path) == steps


def flip(file: Path, place: int | None = None) -> None:
    """Changes a byte of a file; None: in its middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    file.write_bytes(content)


def test_damage_is_named_and_the_next_older_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries: dict[str, Any] = {"a": 0}
    ckpt = Checkpointer(tmp_path, entries, every=1, sync=True)
    for value in (1, 2, 3):
        entries["a"] = value
        ckpt.step()
    flip(tmp_path / "step-3.term-1" / "rank-0.distcp")
    (tmp_path / "step-2.term-1" / "rank-0.distcp").unlink()
    loaded: dict[str, Any] = {"a": 0}
    assert Checkpointer(tmp_path, loaded).resume() == 1
    assert loaded == {"a": 1}
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "step-3.term-1/rank-0.distcp" in told[0]
    assert "step-2.term-1/rank-0.distcp" in told[1]


def test_a_job_with_only_damaged_checkpoints_does_not_start_anew(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"a": 1}).save(sync=True)
    (tmp_path / "step-0.term-1" / "MANIFEST.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match=r"no checkpoint .* is whole"):
        Checkpointer(tmp_path, {"a": 1}).resume()


def test_nothing_of_a_damaged_checkpoint_stays_in_what_an_older_one_lacks(tmp_path: Path) -> None:
    def model(*sizes: int) -> nn.Module:
        return nn.Sequential(*(nn.Linear(size, size) for size in sizes))

    Checkpointer(tmp_path, {"model": model(2)}).save(sync=True)
    grown = model(2, 50)
    ckpt = Checkpointer(tmp_path, {"model": grown})
    assert ckpt.resume(strict=False) == 0
    ckpt.steps = 1
    ckpt.save(sync=True)
    shard = tmp_path / "step-1.term-2" / "rank-0.distcp"
    flip(shard, shard.read_bytes().index(bytes(bytes_of(grown[1].weight.detach()))) + 100)
    fresh = model(2, 50)
    before = fresh[1].weight.detach().clone()
    assert Checkpointer(tmp_path, {"model": fresh}).resume(strict=False) == 0
    assert torch.equal(fresh[1].weight, before)


def test_what_is_in_memory_is_touched_by_nothing_that_is_not_newer_and_whole(
    tmp_path: Path,
) -> None:
    model, other = nn.Linear(40, 40), nn.Linear(40, 40)
    ckpt = Checkpointer(tmp_path, {"model": model}, every=1, sync=True)
    for _ in range(3):
        ckpt.step()
    flip(tmp_path / "step-3.term-1" / "rank-0.distcp")
    before = other.weight.detach().clone()
    again = Checkpointer(tmp_path, {"model": other})
    assert again.load(StateVersion(1, 2)) is None, "the newer one is damaged, the other not newer"
    assert again.load(StateVersion(2, 0)) is None, "of a newer term than all that is there"
    assert torch.equal(other.weight, before)
    assert again.load(StateVersion(1, 1)) == StateVersion(1, 2)
    assert torch.equal(other.weight, model.weight)


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
