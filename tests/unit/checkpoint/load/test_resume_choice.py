"""Which state a job goes on from: the newest that is whole, and nothing of any other."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.entries.tensor_memory import bytes_of
from elastic_runtime.errors import CheckpointError, DamagedCheckpoint
from elastic_runtime.worker.recovery.recovery_source import StateVersion
from tests.ranks import saves

if TYPE_CHECKING:
    from pathlib import Path


def test_the_newest_term_wins_over_a_higher_step(tmp_path: Path) -> None:
    first: dict[str, Any] = {"who": "first"}
    behind = Checkpointer(tmp_path, first, every=1, sync=True)
    for _ in range(3):
        behind.step()
    second: dict[str, Any] = {"who": ""}
    newer = Checkpointer(tmp_path, second, every=1, sync=True)
    newer.steps, second["who"] = 1, "second"
    newer.step()
    with pytest.raises(CheckpointError, match="term 2"):
        behind.step()
    third: dict[str, Any] = {"who": ""}
    assert Checkpointer(tmp_path, third).resume() == 2
    assert third["who"] == "second"
    assert saves(tmp_path) == [
        "step-1.term-1",
        "step-2.term-1",
        "step-2.term-2",
        "step-3.term-1",
    ]


def test_damage_is_named_and_the_next_older_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries: dict[str, Any] = {"a": 0}
    ckpt = Checkpointer(tmp_path, entries, every=1, sync=True)
    for value in (1, 2, 3):
        entries["a"] = value
        ckpt.step()
    for name, damage in (("step-3.term-1", b"x"), ("step-2.term-1", None)):
        shard = tmp_path / name / "rank-0.distcp"
        if damage is None:
            shard.unlink()
        else:
            data = bytearray(shard.read_bytes())
            data[len(data) // 2] ^= 1
            shard.write_bytes(data)
    loaded: dict[str, Any] = {"a": 0}
    with caplog.at_level(logging.WARNING):
        assert Checkpointer(tmp_path, loaded).resume() == 1
    assert loaded == {"a": 1}
    told = [record.getMessage() for record in caplog.records]
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

    ckpt = Checkpointer(tmp_path, {"model": model(2)})
    ckpt.save(sync=True)
    grown = model(2, 50)
    ckpt = Checkpointer(tmp_path, {"model": grown})
    assert ckpt.resume(strict=False) == 0
    ckpt.steps = 1
    ckpt.save(sync=True)
    shard = tmp_path / "step-1.term-2" / "rank-0.distcp"
    content = bytearray(shard.read_bytes())
    content[content.index(bytes(bytes_of(grown[1].weight.detach()))) + 100] ^= 1
    shard.write_bytes(content)
    fresh = model(2, 50)
    before = fresh[1].weight.detach().clone()
    assert Checkpointer(tmp_path, {"model": fresh}).resume(strict=False) == 0
    assert torch.equal(fresh[1].weight, before)


def test_what_is_in_memory_is_touched_by_nothing_that_is_not_newer_and_whole(
    tmp_path: Path,
) -> None:
    model = nn.Linear(40, 40)
    ckpt = Checkpointer(tmp_path, {"model": model}, every=1, sync=True)
    for _ in range(3):
        ckpt.step()
    shard = tmp_path / "step-3.term-1" / "rank-0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    other = nn.Linear(40, 40)
    before = [p.detach().clone() for p in other.parameters()]
    again = Checkpointer(tmp_path, {"model": other})
    assert again.load(StateVersion(1, 2)) is None, "the newer one is damaged, the other not newer"
    assert again.load(StateVersion(2, 0)) is None, "of a newer term than all that is there"
    for parameter, was in zip(other.parameters(), before, strict=True):
        assert torch.equal(parameter, was)
    assert again.load(StateVersion(1, 1)) == StateVersion(1, 2)
    for parameter, saved in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(parameter, saved)
