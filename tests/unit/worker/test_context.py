"""A worker's end of the channel, spoken to by a real socket in the place of an agent."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.events.checkpoint_events import CheckpointCommitted
from elastic_runtime.protocol.messages import (
    ENV_CHANNEL,
    ENV_PROGRESS,
    ENV_ROUND,
    Hello,
    Leave,
    Message,
    Note,
    ProgressFile,
    decode,
)
from elastic_runtime.worker.context import WorkerContext
from tests.unit.programs import python, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE = 60.0


class FakeAgent:
    """The other end of the channel, for one worker at a time."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.path)
        self._server.listen()
        self._server.settimeout(DEADLINE)
        self._line: socket.socket | None = None
        self._pending = b""

    def hear(self) -> Message:
        if self._line is None:
            self._line, _ = self._server.accept()
            self._line.settimeout(DEADLINE)
        while b"\n" not in self._pending:
            data = self._line.recv(65536)
            assert data, "the worker hung up"
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        return decode(line)

    def say(self, data: bytes) -> None:
        assert self._line is not None
        self._line.sendall(data)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._server.close()


def listener_has_ended() -> None:
    """Waits until the worker has heard everything that an agent that is gone has said."""
    for thread in threading.enumerate():
        if thread.name == "elastic-channel":
            thread.join(DEADLINE)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def unhandled() -> Iterator[None]:
    """Nobody handles SIGTERM: a checkpointer of an earlier test may have in this process."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    found = FakeAgent(tmp_path / "agent.sock")
    yield found
    found.close()


@pytest.fixture
def worker(agent: FakeAgent, tmp_path: Path) -> Iterator[WorkerContext]:
    progress = str(tmp_path / "progress")
    ProgressFile(progress, create=True).close()
    context = WorkerContext(
        {"RANK": "3", ENV_ROUND: "7", ENV_CHANNEL: agent.path, ENV_PROGRESS: progress}
    )
    yield context
    context.close()


def test_the_first_word_is_hello(agent: FakeAgent, worker: WorkerContext) -> None:
    worker.note(CheckpointCommitted(10))
    assert agent.hear() == Hello(rank=3, round=7, pid=os.getpid(), drains=False)
    assert agent.hear() == Note(name="checkpoint.committed", rank=3, round=7, fields={"step": 10})
    worker.accept_leave_requests()
    hello = Hello(rank=3, round=7, pid=os.getpid(), drains=True, shielded=True)
    assert agent.hear() == hello
    worker.refuse_leave_requests()
    assert agent.hear() == Hello(rank=3, round=7, pid=os.getpid(), drains=False)


def test_a_request_is_heard_whatever_came_before(agent: FakeAgent, worker: WorkerContext) -> None:
    worker.accept_leave_requests()
    agent.hear()
    leave = Leave(round=7, reason="a node joins").encode()
    agent.say(b"garbage\n{}\n" + Leave(round=6, reason="late").encode() + leave[:9])
    assert not worker.leave_requested.is_set()
    agent.say(leave[9:])
    assert worker.leave_requested.wait(DEADLINE)


def test_a_request_for_another_round_is_ignored(agent: FakeAgent, worker: WorkerContext) -> None:
    worker.accept_leave_requests()
    agent.hear()
    agent.say(Leave(round=6, reason="late").encode())
    agent.say(Leave(round=8, reason="early").encode())
    agent.close()
    listener_has_ended()
    assert not worker.leave_requested.is_set()


def test_what_is_said_once_leaves_nothing_behind(agent: FakeAgent, worker: WorkerContext) -> None:
    worker.note_once(CheckpointCommitted(3))
    assert isinstance(agent.hear(), Hello)
    assert isinstance(agent.hear(), Note)
    with pytest.raises(AssertionError, match="hung up"):
        agent.hear()
    listener_has_ended()


def test_what_is_said_once_keeps_a_connection(agent: FakeAgent, worker: WorkerContext) -> None:
    worker.note(CheckpointCommitted(2))
    worker.note_once(CheckpointCommitted(3))
    worker.note(CheckpointCommitted(4))
    assert isinstance(agent.hear(), Hello)
    steps = [note.fields["step"] for note in (agent.hear() for _ in range(3)) if note]  # type: ignore[union-attr]
    assert steps == [2, 3, 4]


def test_steps_are_published(worker: WorkerContext, tmp_path: Path) -> None:
    worker.report_step(41)
    worker.report_step(42)
    published = ProgressFile(str(tmp_path / "progress"))
    step, count, moment = published.read()
    published.close()
    assert (step, count) == (42, 2)
    assert moment > 0


def test_inner_steps_are_published_beside_the_step(worker: WorkerContext, tmp_path: Path) -> None:
    published = ProgressFile(str(tmp_path / "progress"))
    found = [(published.kept, published.moves()[0])]
    worker.report_step(41)
    moments = [published.moves()[1]]
    for step, inner in ((41, 1), (41, 2), (42, 1)):
        worker.report_inner(step, inner)
        count, moment = published.moves()
        found.append((published.kept, count))
        moments.append(moment)
    assert found == [((0, 0), 0), ((41, 1), 2), ((41, 2), 3), ((42, 1), 4)]
    assert 0 < moments[0] and moments == sorted(moments)
    assert published.read()[:2] == (41, 1)
    published.close()


def test_an_agent_that_is_gone_disturbs_nobody(agent: FakeAgent, worker: WorkerContext) -> None:
    worker.accept_leave_requests()
    agent.hear()
    agent.close()
    os.unlink(agent.path)
    for step in range(3):
        worker.note(CheckpointCommitted(step))
    assert not worker.leave_requested.is_set()


def test_without_an_agent_nothing_is_needed(tmp_path: Path) -> None:
    context = WorkerContext({ENV_PROGRESS: str(tmp_path / "missing")})
    context.report_step(1)
    context.report_inner(1, 1)
    context.note(CheckpointCommitted(1))
    assert not context.has_agent
    assert (context.rank, context.round) == (0, 0)


_FORKS = """
import multiprocessing, os, sys
from elastic_runtime.events.round_events import StepFirst
from elastic_runtime.worker.context import context
context().accept_leave_requests()
pid = os.fork()
if pid == 0:
    context().note(StepFirst(1))
    context().accept_leave_requests()
    os._exit(0 if not context().has_agent else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
child = multiprocessing.get_context("spawn").Process(target=context)
context().note(StepFirst(2))
"""


def test_a_forked_child_does_not_speak_for_its_parent(agent: FakeAgent) -> None:
    worker = waiting(_FORKS, **{ENV_CHANNEL: agent.path, ENV_ROUND: "1"})
    assert agent.hear() == Hello(rank=0, round=1, pid=worker.pid, drains=True, shielded=True)
    assert agent.hear() == Note(name="step.first", rank=0, round=1, fields={"step": 2})
    worker.communicate(timeout=DEADLINE)
    assert worker.returncode == 0


_SIGNALS = """
import os, signal, sys
from elastic_runtime.system import repeated_signals
from elastic_runtime.worker.context import context
context().accept_leave_requests()
os.kill(os.getpid(), signal.SIGTERM)
assert context().leave_requested.is_set()
os.kill(os.getpid(), signal.SIGTERM)  # the same request once more
repeated_signals.ONE_REQUEST = 0.0
{then}
print("alive")
"""


@pytest.mark.parametrize(
    "then", ["os.kill(os.getpid(), signal.SIGTERM)", "context().refuse_leave_requests()"]
)
def test_a_second_sigterm_and_one_that_no_step_honours_end_the_process(then: str) -> None:
    done = python("-c", _SIGNALS.format(then=then))
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_handler_of_the_programs_own_is_left_alone() -> None:
    def handler(number: int, frame: object) -> None:
        raise AssertionError

    signal.signal(signal.SIGTERM, handler)
    WorkerContext({}).accept_leave_requests()
    assert signal.getsignal(signal.SIGTERM) is handler


_LATE = """
import os, signal, threading
from elastic_runtime.worker import context
context.AGENT_ANSWER_TIMEOUT = 0.0
context.context().accept_leave_requests()
assert context.context().leave_requested.wait(60)
os.kill(os.getpid(), signal.SIGTERM)
for thread in threading.enumerate():
    if thread.name == "elastic-sigterm":
        thread.join()
print("alive")
"""


def test_who_is_leaving_outlives_a_signal_to_the_whole_tree_however_late(agent: FakeAgent) -> None:
    """Slurm sends a second one when the time that preemption leaves is over; a save may last."""
    worker = waiting(_LATE, **{ENV_CHANNEL: agent.path, ENV_ROUND: "1"})
    agent.hear()
    agent.say(Leave(1, "asked to").encode())
    said, _ = worker.communicate(timeout=DEADLINE)
    assert (worker.returncode, said) == (0, "alive\n")
