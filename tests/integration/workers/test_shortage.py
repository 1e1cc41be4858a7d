"""A machine that has no room for a process: the start is tried again, and nobody is to blame."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_types import ForkServerExited
from elastic_runtime.agent.workers import fork_client
from elastic_runtime.agent.workers.roster import WorkerStarted
from elastic_runtime.events.worker_events import ForkServerWaits, WorkerWaits
from tests.integration.in_place.job import Job
from tests.integration.workers.crowding import Crowd
from tests.integration.workers.worker_harness import PATIENCE
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers.worker_harness import Begin


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    found = Crowd(tmp_path)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize("cold", [False, True])
def test_a_start_is_tried_again_until_there_is_room(begin: Begin, crowd: Crowd, cold: bool) -> None:
    harness = begin(cold=cold)
    harness.ready()
    harness.write("print('there is room')")
    crowd.come()
    harness.start(0)
    assert "Resource temporarily unavailable" in harness.wait(WorkerWaits).why
    crowd.go()
    (ended,) = harness.exited()
    assert (ended.code, ended.refused) == (0, "")
    harness.prints("there is room")


def test_after_long_enough_the_cause_and_the_remedy_are_told(
    begin: Begin, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_runtime.agent.workers.start_retry.START_RETRY_TIMEOUT", 0.0)
    harness = begin(cold=True)
    harness.ready()
    crowd.come()
    (spec,) = harness.start(0)
    (ended,) = harness.exited()
    assert "Resource temporarily unavailable" in ended.refused
    assert "pids.max" in ended.refused
    with open(spec.worker_dir.error_file) as file:
        assert ended.refused in json.load(file)["message"]["message"]


@pytest.mark.parametrize("grace", [0.0, PATIENCE])
def test_who_waits_for_room_can_be_stopped(begin: Begin, crowd: Crowd, grace: float) -> None:
    harness = begin(cold=True)
    harness.ready()
    crowd.come()
    harness.start(0)
    harness.wait(WorkerWaits)
    harness.workers.stop(grace)
    (ended,) = harness.exited()
    assert ended.code == -(signal.SIGTERM if grace else signal.SIGKILL)
    crowd.go()
    harness.write("print('the next one')")
    (ended,) = harness.run(0)
    assert ended.code == 0
    assert sum(isinstance(event, WorkerStarted) for event in harness.heard) == 1


def test_a_fork_server_is_tried_again_as_well(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refusals = fork_client.start, iter(range(3))

    def crowded(*args: object, **settings: object) -> object:
        for _ in refusals:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return start(*args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(fork_client, "start", crowded)
    harness = begin(cold=True)
    harness.wait(ForkServerWaits)
    monkeypatch.setenv("ELASTIC_TEST_MARK", harness.mark)  # the next one is another thread's
    harness.ready()
    harness.write("print('there is room')")
    (ended,) = harness.run(0)
    assert ended.code == 0


def test_a_fork_server_for_which_there_is_never_room_is_given_up(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crowded(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(fork_client, "start", crowded)
    monkeypatch.setattr("elastic_runtime.agent.workers.start_retry.START_RETRY_TIMEOUT", 0.0)
    harness = begin(cold=True)
    died = harness.wait(ForkServerExited)
    assert died.refused
    assert "memory.max" in died.why


SCRIPT = """
import os, pathlib, sys
first = pathlib.Path(sys.argv[1])
if not first.exists():
    first.touch()
    pathlib.Path(os.environ["ELASTIC_TEST_NO_ROOM"]).touch()
    os.kill(os.getpid(), 9)
print("trained")
"""


def test_a_moment_without_room_after_a_kill_costs_no_restart(tmp_path: Path, crowd: Crowd) -> None:
    script, log = tmp_path / "train.py", tmp_path / "log"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "elastic_runtime"]
    command += ["--max-restarts", "0", str(script), str(tmp_path / "first")]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as agent:
        try:
            wait_for(lambda: "worker.waits" in log.read_text(), PATIENCE, "waits", log.read_text)
            crowd.go()
            assert agent.wait(PATIENCE) == 0, log.read_text()
        finally:
            agent.kill()
    assert "trained" in log.read_text()
    assert "fault.retry" not in log.read_text()


def test_in_place_the_survivors_go_on_until_there_is_room(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    options = ("--nproc-per-node", "2", "--max-restarts", "0")
    with Job(tmp_path, "steps.py", *options, environ=crowd.environment) as job:
        before = job.ranks(2)
        crowd.come()
        job.kill(before[1])
        assert job.event("worker.waits")["rank"] == 1
        alone = job.ranks(1, after=before[0].round)
        assert alone[0].pid == before[0].pid
        crowd.go()
        again = job.ranks(2, after=alone[0].round)
        assert again[0].pid == before[0].pid
        job.finish()
