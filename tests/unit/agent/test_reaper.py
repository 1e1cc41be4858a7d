"""What an agent that was killed leaves in memory is removed once nobody holds its lock."""

from __future__ import annotations

import fcntl
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent import reaper

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it has waited, without waiting; this process keeps its signal handlers."""
    found: list[float] = []
    monkeypatch.setattr(sys, "argv", ["reaper.py", str(tmp_path / "memory"), "3"])
    monkeypatch.setattr(reaper, "time", SimpleNamespace(sleep=found.append))
    monkeypatch.setattr("elastic_runtime.agent.reaper.signal.signal", lambda *_: None)
    return found


def test_an_agent_that_ended_well_has_left_nothing(waited: list[float]) -> None:
    reaper.main()
    assert waited == []


def test_the_directory_goes_after_the_time_that_workers_have(
    tmp_path: Path, waited: list[float]
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    (memory / reaper.LOCK).touch()
    (memory / "snapshot").write_bytes(b"x")
    reaper.main()
    assert not memory.exists()
    assert waited == [3.0]


def test_it_waits_for_the_lock(
    tmp_path: Path, waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    (memory / reaper.LOCK).touch()
    asked: list[int] = []
    locks = SimpleNamespace(LOCK_EX=fcntl.LOCK_EX, flock=lambda _, how: asked.append(how))
    monkeypatch.setattr(reaper, "fcntl", locks)
    reaper.main()
    assert asked == [fcntl.LOCK_EX], "and it blocks until it has it"
