"""What dead agents leave behind is swept; what living ones use is not."""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_runtime.agent import reaper, runtime_dir
from elastic_runtime.agent.runtime_dir import RuntimeDir
from elastic_runtime.errors import UsageError
from tests.unit.programs import waiting


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


HOLDER = """
from elastic_runtime.agent.runtime_dir import RuntimeDir
import sys
print(RuntimeDir().path, flush=True)
sys.stdin.read()
"""


def test_the_directory_of_a_killed_agent_is_swept_and_no_other(
    tmp_path: Path,
) -> None:
    foreign = tmp_path / "elastic-agent-of-somebody"
    foreign.mkdir()
    with waiting(HOLDER, TMPDIR=str(tmp_path)) as holder:
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        first = RuntimeDir()
        assert theirs.is_dir()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    second = RuntimeDir()
    assert not theirs.exists()
    assert Path(first.path).is_dir()
    assert foreign.is_dir()
    first.remove()
    second.remove()
    assert not Path(first.path).exists()


def test_a_directory_is_not_swept_while_it_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock

    def others_come_first(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            runtime_dir.sweep()  # as another agent does that starts at this moment
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", others_come_first)
    made = RuntimeDir()
    assert Path(made.path).is_dir()
    made.remove()


def test_what_people_were_told_of_is_kept() -> None:
    directory = RuntimeDir()
    told = Path(directory.path, "logs", "error.json")
    told.parent.mkdir()
    told.write_text("{}")
    Path(directory.path, "agent.sock").touch()
    directory.remove(keep="logs")
    RuntimeDir().remove()
    assert told.exists()
    assert not Path(directory.path, "agent.sock").exists()


def test_one_that_was_removed_is_made_again() -> None:
    directory = RuntimeDir()
    assert not directory.renew()
    shutil.rmtree(directory.path)
    assert directory.renew()
    runtime_dir.sweep()
    assert Path(directory.path).is_dir()
    assert Path(directory.path).stat().st_mode & 0o777 == 0o700
    assert not directory.renew()
    directory.remove(keep="logs")
    shutil.rmtree(directory.path)


def test_what_somebody_else_has_made_under_its_name_is_not_taken(tmp_path: Path) -> None:
    directory = RuntimeDir()
    shutil.rmtree(directory.path)
    Path(directory.path).symlink_to(tmp_path)
    with pytest.raises(FileExistsError):
        directory.renew()
    Path(directory.path).unlink()
    directory.remove(keep="logs")


def test_without_a_place_for_temporary_files_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"temporary files are kept .*nowhere.*; set TMPDIR to"):
        RuntimeDir()


# What an agent that was killed leaves in memory is removed once nobody holds its lock


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


def test_the_directory_goes_after_the_lock_and_the_time_that_workers_have(
    tmp_path: Path, waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    (memory / reaper.LOCK).touch()
    (memory / "snapshot").write_bytes(b"x")
    asked: list[int] = []
    locks = SimpleNamespace(LOCK_EX=fcntl.LOCK_EX, flock=lambda _, how: asked.append(how))
    monkeypatch.setattr(reaper, "fcntl", locks)
    reaper.main()
    assert asked == [fcntl.LOCK_EX], "it blocks until it has it"
    assert not memory.exists()
    assert waited == [3.0]
