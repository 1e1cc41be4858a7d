"""A save that is killed at any point: the older checkpoint is untouched, the new one whole or not
there.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.errors import CheckpointError
from tests.ranks import entries_of, kill_self, run_ranks, values

if TYPE_CHECKING:
    from pathlib import Path

_WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}


class FileEvents:
    """Counts what this process does in a directory, and kills the process at one of the events."""

    def __init__(self, directory: Path) -> None:
        self._prefix = str(directory)
        self.count = 0
        self.fatal = -1
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _WATCHED and args and str(args[0]).startswith(self._prefix):
            self.count += 1
            if self.count == self.fatal:
                kill_self()


def save_thrice(path: Path, fatal: int) -> int:
    """The third save deletes the first; the process is killed at its ``fatal``-th file event."""
    entries = {"model": nn.Linear(3, 3), "a": 1}
    ckpt = Checkpointer(path, entries, every=1, keep=2)
    ckpt.step()
    entries["a"] = 2
    ckpt.step()
    entries["a"] = 3
    events = FileEvents(path)
    events.fatal = fatal
    ckpt.step()
    return events.count


def resumed(path: Path) -> tuple[int, int]:
    """What a new life finds; it must not stumble over what the crash has left either."""
    entries = {"model": nn.Linear(3, 3), "a": 0}
    ckpt = Checkpointer(path, entries, every=1, keep=2)
    step = ckpt.resume()
    ckpt.step()
    ckpt.close()
    return step, entries["a"]


def test_a_crash_at_any_point_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    (events,) = values(run_ranks(1, save_thrice, tmp_path / "count", -1))
    assert events > 8
    states = []
    for fatal in range(1, events + 1):
        path = tmp_path / str(fatal)
        (outcome,) = run_ranks(1, save_thrice, path, fatal)
        assert outcome.signal == 9
        step, value = resumed(path)
        assert step == value
        states.append(step)
    assert set(states) == {2, 3}
    assert states == sorted(states), "once it exists it stays"


def die_while_saving(path: Path, victim: int, file: str) -> str:
    ckpt = Checkpointer(path, {"model": nine_matrices()}, every=1)
    ckpt.resume()
    ckpt.step()
    if dist.get_rank() == victim:
        events = FileEvents(path / f"step-2.term-1/{file}")
        events.fatal = 1
    try:
        ckpt.step()
    except RuntimeError as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize(
    ("victim", "file"), [(1, "rank-1.distcp"), (0, "rank-0.distcp"), (0, "MANIFEST.json")]
)
def test_a_rank_that_dies_in_a_save_takes_only_this_save_along(
    tmp_path: Path, victim: int, file: str
) -> None:
    outcomes = run_ranks(2, die_while_saving, tmp_path, victim, file)
    assert outcomes[victim].signal == 9
    # The survivor sees what any collective shows when a peer has died, not an error of its user.
    assert outcomes[1 - victim].value == "RuntimeError"
    assert not (tmp_path / "step-2.term-1" / "MANIFEST.json").exists()
    ckpt = Checkpointer(tmp_path, {"model": nine_matrices()})
    assert ckpt.resume() == 1
    ckpt.close()


def nine_matrices() -> nn.Module:
    return nn.ParameterList([torch.ones(9, 9) for _ in range(9)])


def fail_to_write(path: Path) -> list[str]:
    """A save that fails is cleaned away, and a later one at the same step succeeds."""
    entries: dict[str, Any] = {"model": nn.Linear(100, 100)}
    ckpt = Checkpointer(path, entries)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        ckpt.save()
    except CheckpointError as error:
        assert "File too large" in str(error)
    left = entries_of(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ckpt.save()
    return left


def test_a_save_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    assert values(run_ranks(1, fail_to_write, tmp_path)) == [["term-1"]]
    assert entries_of(tmp_path) == ["step-0.term-1", "term-1"]
    assert os.path.exists(tmp_path / "step-0.term-1" / "MANIFEST.json")
