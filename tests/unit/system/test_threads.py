"""The end of threads and of processes is noticed; what a machine has; repeated signals."""

from __future__ import annotations

import ast
import errno
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import elastic_runtime
from elastic_runtime.config import MemoryLimit
from elastic_runtime.system import machine, thread_death, threads
from elastic_runtime.system.repeated_signals import StopRequest
from tests.processes import state, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(elastic_runtime.__file__).parent
PATIENCE = 60.0


def test_what_a_thread_does_not_catch_is_told_with_its_traceback() -> None:
    told: list[threads.Crash] = []
    end = threads.watch(told.append)

    def absent_minded(key: str) -> None:
        raise LookupError(f"no\n{key}")

    try:
        threads.spawn(lambda: None, name="brief").join(PATIENCE)  # that it is through is no crash
        threads.spawn(absent_minded, "idea", name="thinker").join(PATIENCE)
    finally:
        end()
    (crash,) = told
    assert (crash.thread, crash.error) == ("thinker", "LookupError: no idea")
    assert "absent_minded" in crash.trace


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_where_nobody_watches_the_interpreter_says_it() -> None:
    seen: list[str] = []
    before, threading.excepthook = threading.excepthook, lambda args: seen.append(str(args[1]))
    try:
        threads.spawn(lambda: int("x"), name="alone").join(PATIENCE)
    finally:
        threading.excepthook = before
    assert len(seen) == 1


def test_a_crash_is_written_down_for_this_user_only(tmp_path: Path) -> None:
    crash = threads.Crash("main", "ValueError: 3", "Traceback …")
    path = threads.write_down(crash, str(tmp_path / "logs"))
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert "Traceback …" in Path(path).read_text()
    (tmp_path / "file").touch()
    assert threads.write_down(crash, str(tmp_path / "file")) == ""


@pytest.mark.parametrize("part", ["agent", "rendezvous"])
def test_no_thread_of_an_agent_is_started_in_another_way(part: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path in (ROOT / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if _makes_a_thread(node)
    ]
    assert not found, "use elastic_runtime.system.threads.spawn"


def _makes_a_thread(node: ast.AST) -> bool:
    used = node.bases if isinstance(node, ast.ClassDef) else []
    used = [node.func] if isinstance(node, ast.Call) else used
    names = {ast.unparse(one) for one in used}
    return bool(names & {"threading.Thread", "Thread", "threading.Timer", "start_new_thread"})


# ---------------------------------------------------------------- the machine


def test_this_machine() -> None:
    assert 0 < machine.available_memory() <= machine.total_memory()
    assert machine.boot_id() == machine.boot_id() != ""


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 1000 KiB, of which 600 are available, and a group in a group."""
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    (tmp_path / "cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "groups/outer/inner").mkdir(parents=True)
    monkeypatch.setattr(machine, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    return tmp_path / "groups"


def limit(group: Path, most: str, used: int, cache: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


def test_without_limits_all_of_it(groups: Path) -> None:
    limit(groups / "outer/inner", "max", 1000, 0)
    assert (machine.total_memory(), machine.available_memory()) == (1000 << 10, 600 << 10)


def test_the_narrowest_limit_counts(groups: Path) -> None:
    limit(groups / "outer", "400000", 350_000, 100_000)
    limit(groups / "outer/inner", "500000", 100_000, 0)
    assert (machine.total_memory(), machine.available_memory()) == (400_000, 150_000)
    limit(groups / "outer", "400000", 450_000, 0)
    assert machine.available_memory() == 0


def test_shares() -> None:
    assert MemoryLimit(share=0.25).within(1000) == 250
    assert MemoryLimit(bytes=70).within(1000) == 70
    assert MemoryLimit().within(1000) == 0


@pytest.mark.parametrize(
    ("ranks", "share"),
    [("", 1.0), ("1", 1.0), ("2", 0.5), ("1000", 0.0), ("0", 1.0), ("many", 1.0)],
)
def test_ranks_of_a_node_share_its_cores(
    ranks: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert machine.own_cores() == max(1, int(len(os.sched_getaffinity(0)) * share))


# ---------------------------------------------------------------- repeated signals


@pytest.mark.parametrize(
    ("signum", "now", "repeats"),
    [
        (signal.SIGTERM, 100.0, True),
        (signal.SIGTERM, 101.9, True),
        (signal.SIGTERM, 102.0, False),
        (signal.SIGINT, 100.0, False),
    ],
)
def test_the_same_signal_soon_after_is_the_same_request(
    signum: int, now: float, repeats: bool
) -> None:
    assert StopRequest(signal.SIGTERM, 100.0).repeated_by(signum, now) is repeats


# ---------------------------------------------------------------- the death of another process

# Holds the file, says so, and does what its first line of input says.
HOLDER = """
import mmap, os, sys, threading, time
from elastic_runtime.system import thread_death
print(thread_death.hold(sys.argv[1]), flush=True)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
exec(sys.stdin.readline())
"""


class Holder:
    """A process that holds a file, and a thread that awaits its death."""

    def __init__(self, path: Path) -> None:
        self.found: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.holds = self.hears() == "True"
        self._path = str(path)
        self.thread = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        self.found.put(thread_death.await_death(self._path, self.process.pid))

    def hears(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def does(self, line: str) -> None:
        """Has it do this, with somebody waiting for its death if it holds the file."""
        if self.holds:
            self.thread.start()
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    thread_death.make(str(tmp_path / "death"))
    found = Holder(tmp_path / "death")
    yield found
    found.end()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("time.sleep(1000)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("os._exit(3)", 3),
        ("sys.exit(4)", 4),
        ("raise ValueError", 1),
        ("os._exit(0)", None),  # that is no fault, and can wait
        ("os.execvp('sleep', ['sleep', '1000'])", None),  # that is no death
    ],
)
def test_the_exit_code_is_known(holder: Holder, line: str, code: int | None) -> None:
    assert holder.holds
    holder.does(line)
    if code == -signal.SIGKILL:
        holder.process.kill()
    assert holder.found.get(timeout=PATIENCE) == code
    if code is not None:
        assert holder.process.wait(PATIENCE) == code


def test_a_death_is_known_before_the_process_is_gone(holder: Holder) -> None:
    """It cannot be gone before it has given back its memory."""
    holder.does(
        "m = mmap.mmap(-1, 1 << 30); [m.write(bytes(1 << 20)) for _ in range(1 << 10)];"
        " print('full', flush=True); time.sleep(1000)"
    )
    assert holder.hears() == "full"
    holder.process.kill()
    assert holder.found.get(timeout=PATIENCE) == -signal.SIGKILL
    assert holder.process.poll() is None
    assert holder.process.wait(PATIENCE) == -signal.SIGKILL


def test_a_child_of_the_holder_neither_holds_nor_gives_it_up(holder: Holder) -> None:
    holder.does(
        "child = os.fork() or os._exit(5); print(os.waitpid(child, 0)[1], flush=True);"
        " time.sleep(1000)"
    )
    assert holder.hears() == str(5 << 8)
    assert holder.found.empty()
    assert holder.thread.is_alive()
    holder.process.kill()
    assert holder.found.get(timeout=PATIENCE) == -signal.SIGKILL


def test_one_process_holds_a_file(holder: Holder, tmp_path: Path) -> None:
    second = Holder(tmp_path / "death")
    assert not second.holds
    second.end()
    assert not thread_death.hold(str(tmp_path / "death"))


def test_what_is_no_such_file_is_not_held(tmp_path: Path) -> None:
    short, other = tmp_path / "short", tmp_path / "other"
    short.write_bytes(b"x")
    other.write_bytes(b"another C library".ljust(128, b"\0"))
    for path in (tmp_path / "missing", short, other, tmp_path):
        assert not thread_death.hold(str(path))
    assert thread_death.await_death(str(tmp_path / "missing"), os.getpid()) is None
    with pytest.raises(FileExistsError):
        thread_death.make(str(short))


def test_no_trace_of_the_process_is_no_death(tmp_path: Path) -> None:
    """Its parent may have collected it before the news was read."""
    thread_death.make(str(tmp_path / "death"))
    gone = Holder(tmp_path / "death")
    gone.end()
    wait_for(lambda: not state(gone.process.pid), PATIENCE, "the end of the process")
    assert thread_death.await_death(str(tmp_path / "death"), gone.process.pid) is None


def test_a_file_whose_holder_died_unseen_is_not_held_again(tmp_path: Path) -> None:
    """A script that starts two others, one after the other, in one environment."""
    thread_death.make(str(tmp_path / "death"))
    first = Holder(tmp_path / "death")
    assert first.holds
    first.end()
    second = Holder(tmp_path / "death")
    assert not second.holds
    second.does("import ctypes; m = mmap.mmap(-1, 1 << 16); sys.exit(0)")
    assert second.process.wait(PATIENCE) == 0
    second.end()


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "write", refuse)
        thread_death.make(str(tmp_path / "death"))
    assert not list(tmp_path.iterdir())
