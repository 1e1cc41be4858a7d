"""No thread of an agent ends unseen."""

from __future__ import annotations

import ast
import stat
import threading
from pathlib import Path

import pytest

import elastic_runtime
from elastic_runtime.system import threads

ROOT = Path(elastic_runtime.__file__).parent
PATIENCE = 60.0


def test_what_a_thread_does_not_catch_is_told_with_its_traceback() -> None:
    told: list[threads.Crash] = []
    end = threads.watch(told.append)

    def absent_minded(key: str) -> None:
        raise LookupError(f"no\n{key}")

    try:
        threads.spawn(absent_minded, "idea", name="thinker").join(PATIENCE)
    finally:
        end()
    (crash,) = told
    assert (crash.thread, crash.error) == ("thinker", "LookupError: no idea")
    assert "absent_minded" in crash.trace


def test_a_thread_that_is_through_is_no_crash() -> None:
    told: list[threads.Crash] = []
    end = threads.watch(told.append)
    try:
        threads.spawn(lambda: None, name="brief").join(PATIENCE)
    finally:
        end()
    assert not told


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
