"""However a worker, its server or its agent ends: what it left behind ends as well."""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_types import ForkServerExited
from elastic_runtime.config import COMMAND, Entry
from elastic_runtime.system import threads
from tests.integration.workers.worker_harness import PATIENCE, ScriptHarness
from tests.processes import MARKER, command, parent, send, state, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.workers.worker_harness import Begin

# Children of every kind: of a data loader, of a fork, and of programs.
FAMILY = """
import os, subprocess, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index):
        if index > 5:
            time.sleep(1000)
        return index

loader = iter(DataLoader(Slow(), num_workers=2, prefetch_factor=2))
next(loader)
if os.fork() == 0:
    time.sleep(1000)
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["bash", "-c", "sleep 1000; true"])
print("all there")
time.sleep(1000)
"""

STUBBORN = """
import os, signal, sys, time
def handler(signum, frame): os.write(1, f"asked {signal.Signals(signum).name}\\n".encode())
signal.signal(signal.SIGTERM, handler)
print("in place")
while True:
    time.sleep(1000)
"""


@pytest.fixture
def tidy(warm: ScriptHarness) -> Iterator[ScriptHarness]:
    """The warm workers; nothing but their server may be there before and after."""
    warm.only_server_left()
    yield warm
    warm.only_server_left()


def begun(harness: ScriptHarness, source: str, line: str) -> int:
    """Starts a worker and waits for a line of its output; its process."""
    harness.write(source)
    os.truncate(harness.stdout, 0)
    harness.start(0)
    pid = harness.started()
    harness.prints(line)
    return pid


def test_a_killed_worker_takes_all_its_children_along(tidy: ScriptHarness) -> None:
    pid = begun(tidy, FAMILY, "all there")
    assert len(tidy.all()) >= 7, tidy.all()
    os.kill(pid, signal.SIGKILL)
    (ended,) = tidy.exited()
    assert (ended.pid, ended.code, ended.round) == (pid, -signal.SIGKILL, tidy.round)
    tidy.only_server_left()


def test_a_worker_that_ends_well_takes_its_children_along(tidy: ScriptHarness) -> None:
    tidy.write("import subprocess; subprocess.Popen(['sleep', '1000']); print('started')")
    (ended,) = tidy.run(0)
    assert ended.code == 0
    tidy.only_server_left()


def test_a_request_to_end_can_be_answered(harness: ScriptHarness) -> None:
    begun(harness, STUBBORN.replace("os.write(", "sys.exit(21) or os.write(", 1), "in place")
    harness.workers.stop(PATIENCE)
    (ended,) = harness.exited()
    assert ended.code == 21


def test_who_does_not_listen_is_killed(harness: ScriptHarness) -> None:
    begun(harness, STUBBORN, "in place")
    harness.workers.stop(0.3)
    harness.prints("asked SIGTERM")
    (ended,) = harness.exited()
    assert ended.code == -signal.SIGKILL
    assert harness.workers.running() == frozenset()


def test_a_second_request_may_be_less_patient(warm: ScriptHarness) -> None:
    begun(warm, STUBBORN, "in place")
    warm.workers.stop(PATIENCE)
    warm.prints("asked SIGTERM")
    warm.workers.kill()
    (ended,) = warm.exited()
    assert ended.code == -signal.SIGKILL


def test_a_stop_right_after_a_start_is_not_lost(warm: ScriptHarness) -> None:
    warm.write("import time; time.sleep(1000)")
    for _ in range(10):
        warm.start()
        warm.workers.stop(PATIENCE)
        assert [ended.code for ended in warm.exited(2)] == [-signal.SIGTERM] * 2


def test_a_signal_goes_to_one_worker(warm: ScriptHarness) -> None:
    warm.write("import time; time.sleep(1000)")
    warm.start()
    warm.workers.signal(1, signal.SIGUSR1)
    (ended,) = warm.exited()
    assert (ended.local_rank, ended.code) == (1, -signal.SIGUSR1)
    assert warm.workers.running() == {0}
    warm.workers.kill()
    (ended,) = warm.exited()
    assert ended.local_rank == 0


def test_a_signal_goes_to_those_who_handle_it(harness: ScriptHarness) -> None:
    handles_one = STUBBORN.replace("os.write(", "sys.exit(21) or os.write(", 1)
    handles_one = handles_one.replace("SIGTERM", "SIGUSR1 if os.environ['RANK'] == '1' else 1")
    harness.write(f"import os{handles_one}")
    os.truncate(harness.stdout, 0)
    harness.start()
    wait_for(
        lambda: harness.stdout.read_text().count("in place") == 2, PATIENCE, "both", harness.story
    )
    harness.workers.signal(0, signal.SIGUSR1, otherwise=0)  # who does not handle it hears nothing
    harness.workers.stop(PATIENCE, signum=signal.SIGUSR1)
    assert [ended.code for ended in harness.exited(2)] == [-signal.SIGTERM, 21]


def test_an_interrupt_can_be_caught(harness: ScriptHarness) -> None:
    source = "import time\ntry:\n    print('in place'); time.sleep(1000)\n"
    begun(harness, source + "except KeyboardInterrupt:\n    raise SystemExit(22)\n", "in place")
    harness.workers.stop(PATIENCE, signum=signal.SIGINT)
    (ended,) = harness.exited()
    assert ended.code == 22


# Without a trap of its own the shell itself would have died of it.
@pytest.mark.parametrize(("trap", "name"), [("", "USR1"), ("trap 'echo asked' TERM;", "TERM")])
def test_a_command_gets_the_signal_with_all_its_group(begin: Begin, trap: str, name: str) -> None:
    inner = f"trap 'echo inner asked; exit 0' {name}; echo ready; sleep 1000 & wait"
    harness = begin(Entry(COMMAND, "bash", ("-c", f"{trap} ({inner}); exit 5")))
    harness.start()
    harness.prints("ready")
    harness.workers.stop(PATIENCE, signum=signal.Signals[f"SIG{name}"])
    (ended,) = harness.exited()
    harness.prints("inner asked")
    assert ended.code == 5


def test_what_has_escaped_neither_delays_a_report_nor_survives_the_end(begin: Begin) -> None:
    harness = begin(Entry(COMMAND, "bash", ("-c", "setsid sleep 1000 & echo away")))
    harness.start()
    (ended,) = harness.exited()  # though the escaped one holds the pipe
    harness.prints("away")
    assert ended.code == 0


def test_the_server_dies_and_another_takes_its_place(begin: Begin) -> None:
    harness = begin()
    harness.ready()
    begun(harness, FAMILY, "all there")
    os.kill(harness.server(), signal.SIGKILL)
    (ended,) = harness.exited()
    assert (ended.code, ended.with_server) == (-signal.SIGKILL, True)
    died = harness.wait(ForkServerExited)
    assert died.why == "signal 9"
    wait_for(lambda: not harness.all(), 20, "the end of everything", harness.story)

    harness.write("print('second life')")
    harness.start(0)  # waits for a server
    harness.workers.start_server()
    (ended,) = harness.exited()
    assert ended.code == 0
    harness.prints("second life")


def test_a_server_that_is_stopped_holds_no_end_back(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the only one to know that its workers had ended, and nothing ended it."""
    monkeypatch.setattr("elastic_runtime.agent.workers.worker_processes.WORKERS_END_TIMEOUT", 0.5)
    harness = begin()
    harness.ready()
    begun(harness, FAMILY, "all there")
    os.kill(harness.server(), signal.SIGSTOP)
    harness.workers.kill()
    (ended,) = harness.exited()
    assert (ended.code, ended.with_server) == (-signal.SIGKILL, True)
    assert harness.wait(ForkServerExited).why == "signal 9"
    wait_for(lambda: not harness.all(), 20, "the end of everything", harness.story)


def test_nothing_is_left_when_the_thread_that_looks_after_workers_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes: queue.SimpleQueue[threads.Crash] = queue.SimpleQueue()
    unwatch = threads.watch(crashes.put)
    harness = ScriptHarness(tmp_path, cold=True)
    harness.ready()
    begun(harness, STUBBORN, "in place")

    def crash(now: float) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(harness.workers, "_kill_overdue", crash)
    harness.workers.signal(0, signal.SIGTERM)
    assert crashes.get(timeout=PATIENCE).thread == "elastic-workers"
    assert harness.all()
    harness.close()  # finds nothing left
    unwatch()


def test_a_server_may_die_just_as_another_takes_its_place(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = begin(cold=True)
    harness.ready()
    before = harness.workers._server
    assert before is not None
    calls: list[Callable[[], None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(harness.workers, "_call", calls.append)
        patch.setenv(MARKER, harness.mark)
        harness.workers.start_server()
    before.process.kill()
    wait_for(lambda: before.channel.fileno() < 0, PATIENCE, "that its end is heard of")
    for call in calls:
        harness.workers._call(call)
    harness.ready()
    harness.write("print('the next one')")
    (ended,) = harness.run(0)
    assert ended.code == 0


def test_workers_are_seen_dead_where_they_have_no_handles(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    harness = begin(cold=True)
    harness.ready()
    begun(harness, STUBBORN, "in place")
    monkeypatch.setattr(os, "pidfd_open", none)
    os.kill(harness.server(), signal.SIGKILL)
    (ended,) = harness.exited()
    assert ended.with_server
    assert harness.wait(ForkServerExited)


def test_a_server_that_cannot_start_says_why(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "elastic_runtime.agent.workers.fork_server.BOOTSTRAP", "raise OSError('no luck')"
    )
    harness = begin()
    assert harness.wait(ForkServerExited).why == "exit code 1: OSError: no luck"


def test_a_server_that_dies_of_its_imports_each_time_is_followed_by_one_without(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = tmp_path / "library" / "deadly.py"
    deadly.parent.mkdir()
    deadly.write_text("import os; os.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(deadly.parent))
    monkeypatch.setattr("elastic_runtime.agent.workers.worker_processes.MAX_IMPORT_DEATHS", 2)
    harness = begin(preload=("deadly",))
    for _ in range(2):
        assert harness.wait(ForkServerExited).why.startswith("signal 6")
        harness.workers.start_server()
    assert "died while it imported modules (signal 6" in harness.ready().why_cold
    harness.write("print('all the same')")
    (ended,) = harness.run(0)
    assert ended.code == 0
    # Later it is tried again.
    deadly.write_text("")
    harness.workers._warm_at = 0.0
    harness.start(0)
    assert harness.ready().why_cold == ""
    (ended,) = harness.exited()
    assert ended.code == 0


def test_workers_and_their_forks_follow_a_dead_server_by_themselves(tmp_path: Path) -> None:
    # Agent and server at once, as when a node's whole process tree is shot: nobody is left to
    # clean up. Programs that a worker has started are beyond reach then; its forks are not.
    forks = FAMILY.replace("subprocess.Popen", "len")
    with running_agent(tmp_path, "warm", forks) as (agent, server, family):
        assert len(family) >= 4
        agent.send_signal(signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        gone(family)


AGENT = """
import os, sys, time
from pathlib import Path
from tests.integration.workers.worker_harness import ScriptHarness
harness = ScriptHarness(Path(sys.argv[1]), cold=sys.argv[2] == "cold")
source = Path(sys.argv[3]).read_text()
if source:
    harness.write(source)
    harness.start()
    harness.prints("all there")
if sys.argv[4] == "False" or os.fork() > 0:
    print("ready", flush=True)
time.sleep(1000)
"""


def test_a_process_that_the_agent_has_forked_does_not_keep_workers_alive(tmp_path: Path) -> None:
    # It holds a copy of the agent's end of the socket, so that the server sees no end of it.
    sleeper = "import time; print('all there'); time.sleep(1000)"
    with running_agent(tmp_path, "cold", sleeper, fork=True) as (agent, server, family):
        (forked,) = set(descendants(agent.pid)) - {server, *family}
        agent.kill()
        agent.wait()
        try:
            gone([server, *family])
        finally:
            os.kill(forked, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_a_killed_agent_leaves_nothing(tmp_path: Path, kind: str) -> None:
    with running_agent(tmp_path, kind, FAMILY) as (agent, server, family):
        assert len(family) >= 6
        agent.kill()
        agent.wait()
        gone([server, *family])


def test_an_agent_killed_while_its_server_imports_leaves_nothing(tmp_path: Path) -> None:
    with running_agent(tmp_path, "warm", "") as (agent, server, family):
        agent.kill()
        agent.wait()
        gone([server, *family])


@contextmanager
def running_agent(
    directory: Path, kind: str, source: str, *, fork: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], int, list[int]]]:
    """An agent in a process of its own, its server, and all that has come of that.

    Without a source it is given as soon as the server's process exists.
    """
    script = directory / "given.py"
    script.write_text(source)
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(directory), kind, str(script), str(fork)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert agent.stdout is not None
    family: list[int] = []
    try:
        assert agent.stdout.readline() == b"ready\n"
        (server,) = [pid for pid in descendants(agent.pid) if "fork_server" in command(pid)]
        family = descendants(server)
        yield agent, server, family
    finally:
        agent.stdout.close()
        agent.kill()
        agent.wait()
        send([pid for pid in family if alive(pid)], signal.SIGKILL)


def gone(pids: list[int]) -> None:
    """Waits until none of these is alive."""
    wait_for(lambda: not [pid for pid in pids if alive(pid)], 20, "the end of everything")


def everything() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def descendants(pid: int) -> list[int]:
    processes = everything()
    found = [pid]
    for known in found:
        found += [other for other in processes if parent(other) == known]
    return found[1:]


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")
