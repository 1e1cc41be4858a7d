"""No thread of an agent ends unseen; its machine, and repeated signals."""

from __future__ import annotations

import ast
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

import elastic_runtime
from elastic_runtime.config import MemoryLimit
from elastic_runtime.system import machine, threads
from elastic_runtime.system.repeated_signals import StopRequest

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
