"""The end of a worker that holds the file for it is reported when it begins."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_types import ForkServerExited, WorkerExited
from elastic_runtime.agent.workers.roster import WorkerStarted
from elastic_runtime.protocol.messages import ENV_DEATH
from elastic_runtime.system import thread_death
from tests.processes import state, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers.worker_harness import Begin, ScriptHarness


HOLDS = """
import os, sys, threading, time
from elastic_runtime.system import thread_death
if not thread_death.hold(os.environ["ELASTIC_DEATH"]):
    sys.exit("not held")
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
if os.fork() == 0:
    time.sleep(1000)
print("holds")
END
"""


def _begun(harness: ScriptHarness, end: str, directory: Path) -> int:
    """Starts a worker that holds its file, and is watched; its process."""
    path = str(directory / "death")
    thread_death.make(path)
    harness.write(HOLDS.replace("END", end))
    os.truncate(harness.stdout, 0)
    harness.start(0, **{ENV_DEATH: path})
    pid = harness.started()
    harness.prints("holds")
    harness.workers.watch(0, pid, path)
    return pid


@pytest.mark.parametrize(("end", "code"), [("time.sleep(1000)", -9), ("os._exit(7)", 7)])
def test_it_is_reported_before_the_process_is_gone(
    warm: ScriptHarness, tmp_path: Path, end: str, code: int
) -> None:
    server = warm.server()
    path = tmp_path / "go"
    end = f"\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\nprint('last'); {end}"
    pid = _begun(warm, end, tmp_path)
    os.kill(server, signal.SIGSTOP)
    try:
        path.touch()
        warm.prints("last")
        if code < 0:
            os.kill(pid, signal.SIGKILL)
        (ended,) = warm.exited()
        assert (ended.code, ended.pid, ended.local_rank) == (code, pid, 0)
        assert state(pid) != ""
        assert warm.workers.running() == frozenset()
        # The next one has to wait for what this one still holds.
        warm.start(0, **{ENV_DEATH: ""})
        assert warm.workers.running() == {0}
    finally:
        os.kill(server, signal.SIGCONT)
    next_pid = warm.wait(WorkerStarted).pid
    assert next_pid != pid
    assert state(pid) == ""
    (second,) = warm.exited()  # it is refused its file
    assert (second.code, second.pid) == (1, next_pid)
    warm.only_server_left()
    told = [it.pid for it in warm.heard if isinstance(it, WorkerExited)]
    assert told.count(pid) == 1


def test_who_ends_well_is_reported_once_it_is_gone(warm: ScriptHarness, tmp_path: Path) -> None:
    pid = _begun(warm, "os._exit(0)", tmp_path)
    (ended,) = warm.exited()
    assert ended.code == 0
    assert state(pid) == ""


def test_another_process_than_the_worker_is_not_believed(
    warm: ScriptHarness, tmp_path: Path
) -> None:
    """A script may start another one, which finds the same environment."""
    path = str(tmp_path / "death")
    thread_death.make(path)
    warm.write(
        "import os, subprocess, sys, time\n"
        "child = subprocess.run([sys.executable, '-c', '''\n"
        "import os, threading, time\n"
        "from elastic_runtime.system import thread_death\n"
        "print(thread_death.hold(os.environ['ELASTIC_DEATH']), os.getpid(), flush=True)\n"
        "while not os.path.exists(os.environ['GO']): time.sleep(0.01)\n"
        "os._exit(3)\n"
        "'''])\n"
        "print('it has ended with', child.returncode)\n"
        "time.sleep(1000)\n"
    )
    os.truncate(warm.stdout, 0)
    go = tmp_path / "go"
    warm.start(0, **{ENV_DEATH: path, "GO": str(go)})
    pid = warm.started()
    warm.prints("True")
    held = [line for line in warm.stdout.read_text().split("\n") if "True" in line]
    warm.workers.watch(0, int(held[0].split()[-1]), path)
    go.touch()
    warm.prints("it has ended with 3")
    assert warm.workers.running() == {0}
    os.kill(pid, signal.SIGKILL)
    (ended,) = warm.exited()
    assert ended.code == -signal.SIGKILL
    wait_for(lambda: state(pid) == "", 10, "the end of the worker")


def test_a_server_that_stays_stopped_does_not_keep_the_next_worker_waiting(
    begin: Begin,
    tmp_path: Path,
) -> None:
    harness = begin()
    harness.ready()
    pid = _begun(harness, "time.sleep(1000)", tmp_path)
    os.kill(harness.server(), signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    (ended,) = harness.exited()
    assert (ended.code, ended.pid) == (-signal.SIGKILL, pid)
    harness.write("import time; time.sleep(1000)")
    harness.start(0)
    harness.wait(ForkServerExited)
    with harness._marked():
        harness.workers.start_server()
    assert harness.started() != pid
    assert state(pid) == ""
