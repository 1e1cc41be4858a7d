"""What a node has on its machine: a name, a place, and directories that are swept."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent import reaper, runtime_dir
from elastic_runtime.agent.node_name import own_name
from elastic_runtime.agent.node_topology import with_topology
from elastic_runtime.agent.runtime_dir import RuntimeDir
from elastic_runtime.config import JobConfig
from elastic_runtime.errors import UsageError
from elastic_runtime.events.node_events import TopologyUnknown
from tests.unit.programs import waiting

if TYPE_CHECKING:
    from elastic_runtime.events import Event


HOST = socket.gethostname()


def test_several_nodes_of_a_run_are_told_apart() -> None:
    with ExitStack() as stack:
        names = [stack.enter_context(own_name("naming-several")) for _ in range(3)]
        others = [stack.enter_context(own_name(run)) for run in ("naming-another", "r" * 500)]
        assert names == [HOST, f"{HOST}#2", f"{HOST}#3"]
        assert others == [HOST, HOST]


def test_a_name_is_free_again_when_its_node_has_been_killed() -> None:
    program = """
import sys
from elastic_runtime.agent.node_name import own_name
with own_name("naming-killed") as name:
    print(name, flush=True)
    sys.stdin.read()
"""
    node = waiting(program)
    assert node.stdout is not None
    assert node.stdout.readline().strip() == HOST
    with own_name("naming-killed") as name:
        assert name == f"{HOST}#2"
    node.kill()
    node.communicate()
    with own_name("naming-killed") as name:
        assert name == HOST


# The file that says where this node is: there, late, empty, odd, or never there


PATIENCE = 60.0


def _read(path: Path, timeout: float = 0.0) -> tuple[tuple[str, ...], list[Event]]:
    told: list[Event] = []
    config = with_topology(JobConfig(node_topology_file=str(path)), told.append, timeout=timeout)
    return config.node_topology, told


@pytest.mark.parametrize(("text", "levels"), [("z/b/r\n", ("z", "b", "r")), ("-", ()), ("-\n", ())])
def test_what_is_there_is_taken_at_once(tmp_path: Path, text: str, levels: tuple[str, ...]) -> None:
    path = tmp_path / "topology"
    path.write_text(text)
    assert _read(path) == (levels, [])


def test_a_file_that_is_filled_later_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(_read(path, PATIENCE)))
    reader.start()
    path.touch()
    draft = tmp_path / "draft"
    draft.write_text("z/r")
    draft.rename(path)
    reader.join(PATIENCE)
    assert found == [(("z", "r"), [])]


def _why(path: Path, timeout: float = 0.0) -> str:
    levels, (event,) = _read(path, timeout)
    assert levels == ()
    assert isinstance(event, TopologyUnknown)
    assert str(path) in event.message()
    return event.message()


def test_a_file_that_says_nothing_in_time_is_gone_without(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    assert "cannot be read (No such file or directory) after 0 s" in _why(path)
    path.write_text("\n")
    assert "is still empty after 0 s" in _why(path)
    assert "this node joins without one" in _why(path)


def test_what_is_no_topology_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    for data, why in (
        (b"a//b", "level 2 is empty"),
        (b"a\nb\n", "it has several lines"),
        (b"\xff", "it is not UTF-8"),
        (b"x" * 10_000, "level 1 has 4096 characters, of 64"),
    ):
        path.write_bytes(data)
        assert f"has no topology: {why}" in _why(path, PATIENCE)
    path.unlink()
    os.mkfifo(path)  # nobody ever writes into it
    assert "it is no regular file" in _why(path, PATIENCE)


def test_what_the_settings_say_comes_first(tmp_path: Path) -> None:
    told: list[Event] = []
    config = JobConfig(node_topology=("z",), node_topology_file=str(tmp_path / "none"))
    assert with_topology(config, told.append, timeout=PATIENCE) is config
    assert with_topology(JobConfig(), told.append, timeout=PATIENCE) == JobConfig()
    assert told == []


# What dead agents leave behind is swept; what living ones use is not


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


HOLDER = """
from elastic_runtime.agent.runtime_dir import RuntimeDir
import sys
print(RuntimeDir().path, flush=True)
sys.stdin.read()
"""


def test_the_directory_of_a_killed_agent_is_swept_and_no_other(tmp_path: Path) -> None:
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
