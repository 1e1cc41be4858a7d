"""The step of a job under Slurm: how it is started, what reaches it, and what follows its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.run import slurm_step
from elastic_runtime.cli.run.slurm_step import SlurmStep, conclude, refuse_finished, srun_command
from elastic_runtime.cli.run_in_store import RunInStore
from elastic_runtime.cli.slurm.job_end import JobEnd
from elastic_runtime.cli.slurm.slurm_task import SlurmTask
from elastic_runtime.endpoint import parse_endpoint
from elastic_runtime.errors import EXIT_LEFT, UsageError
from elastic_runtime.protocol.records import OutcomeRecord
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.cli.stand_ins import StandIns


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
    numbers += (signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


TASK = SlurmTask(17, ("n0", "n1"), "n0", 2, in_step=False)


def _goes_on() -> bool:
    return False


ELEMENT = replace(TASK, job=21, array=17, index=3)


def test_each_node_is_one_task_and_may_die_alone() -> None:
    command = srun_command(TASK, ["--min", "1", "train.py"], {"SLURM_CPUS_PER_TASK": "8"})
    assert command[0] == "srun"
    for option in ("--nodes=2", "--ntasks=2", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"):
        assert option in command
    assert "--cpus-per-task=8" in command
    assert command[-6:] == [sys.executable, "-m", "elastic_runtime", "--min", "1", "train.py"]
    assert not [word for word in srun_command(TASK, [], {}) if "cpus-per-task" in word]


def test_its_exit_code_is_that_of_srun() -> None:
    with SlurmStep(print) as step:
        assert step.run(["sh", "-c", "exit 5"], _goes_on) == 5
    with SlurmStep(print) as step:
        assert step.run(["sh", "-c", "kill -9 $$"], _goes_on) == 128 + signal.SIGKILL


def test_without_srun_there_is_no_step() -> None:
    with (
        SlurmStep(print) as step,
        pytest.raises(UsageError, match="srun cannot be started: No such"),
    ):
        step.run(["no-srun"], _goes_on)


def _signalled(step: SlurmStep, folder: Path, number: int) -> int:
    """What the step comes to if this process gets a signal while it runs."""
    ready, go = folder / "ready", folder / "go"
    text = f"trap 'exit 5' USR1; trap 'exit 6' TERM; touch {ready}; "
    text += f"until [ -e {go} ]; do sleep 0.02; done; exit 0"

    def send() -> None:
        wait_for(ready.exists, 60, "the step")
        os.kill(os.getpid(), number)
        if number != signal.SIGUSR1:
            go.touch()

    sender = threading.Thread(target=send)
    sender.start()
    code = step.run(["sh", "-c", text], _goes_on)
    sender.join()
    return code


def test_what_slurm_sends_to_the_batch_script_alone_reaches_the_step(tmp_path: Path) -> None:
    with SlurmStep(print) as step:
        assert _signalled(step, tmp_path, signal.SIGUSR1) == 5


def test_what_comes_while_the_step_is_being_started_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = subprocess.Popen

    def signalled(*args: Any, **how: Any) -> subprocess.Popen[bytes]:
        process = started(*args, **how)
        wait_for((tmp_path / "ready").exists, 60, "the step")
        os.kill(os.getpid(), signal.SIGUSR1)
        return process

    monkeypatch.setattr(slurm_step.subprocess, "Popen", signalled)
    text = f"trap 'exit 5' USR1; touch {tmp_path}/ready; while :; do sleep 0.02; done"
    with SlurmStep(print) as step:
        assert step.run(["sh", "-c", text], _goes_on) == 5


def test_srun_which_would_kill_its_step_hears_of_no_sigterm(tmp_path: Path) -> None:
    with SlurmStep(print) as step:
        assert _signalled(step, tmp_path, signal.SIGTERM) == 0
        # Nor does it end this process, which has to say what follows.
        os.kill(os.getpid(), signal.SIGTERM)
    # Slurm sends it to whom it queues again.
    os.kill(os.getpid(), signal.SIGTERM)


def test_who_waits_for_a_task_of_a_job_that_is_over_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_step, "LAST_TASKS", 0.2)
    with SlurmStep(print) as step:
        assert step.run(["sleep", "1000"], lambda: True, 0.05) == EXIT_LEFT
    assert capsys.readouterr().out.count("srun has waited for a task") == 1
    with SlurmStep(print) as step:
        # One that hears no SIGTERM either.
        deaf = ["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"]
        assert step.run(deaf, lambda: True, 0.05) == EXIT_LEFT


def test_a_job_that_is_asked_to_leave_before_its_step_has_none(tmp_path: Path) -> None:
    with SlurmStep(print) as step:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert step.run(["touch", str(tmp_path / "started")], _goes_on) == EXIT_LEFT
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("task", "name"), [(TASK, "17"), (ELEMENT, "17_3")])
def test_who_still_runs_is_queued_again(stand_ins: StandIns, task: SlurmTask, name: str) -> None:
    stand_ins.put("scontrol", "echo 'JobId=17 JobState=RUNNING Reason=None'")
    told = conclude(JobEnd(5, requeue=True, reason="asked to leave"), task)
    assert told == ["asked to leave", f"job {name} is queued again"]
    assert stand_ins.calls()[-1] == f"scontrol requeue {name}"


def test_who_is_cancelled_is_not(stand_ins: StandIns) -> None:
    stand_ins.put("scontrol", "echo 'JobId=17 JobState=COMPLETING'")
    (told,) = conclude(JobEnd(5, requeue=True), TASK)
    why = "cancelled, out of time, or queued again by Slurm itself"
    assert told == f"job 17 is COMPLETING ({why}): elastic-run asks for nothing"
    assert len(stand_ins.calls()) == 1


def test_a_site_that_lets_nobody_requeue_is_told(stand_ins: StandIns) -> None:
    refuses = "echo 'Access/permission denied' >&2; exit 1"
    stand_ins.put("scontrol", f"[ $1 = requeue ] && {{ {refuses}; }}; echo JobState=RUNNING")
    (told,) = conclude(JobEnd(5, requeue=True), TASK)
    assert told == "scontrol requeue 17: Access/permission denied"


def test_a_controller_that_is_away_for_a_moment_is_asked_again(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slurm_step, "_AGAIN", 0.01)
    fails = f"touch {tmp_path}/up; echo 'Unable to contact slurm' >&2; exit 1"
    stand_ins.put("scontrol", f"[ -e {tmp_path}/up ] || {{ {fails}; }}; echo JobState=RUNNING")
    assert conclude(JobEnd(5, requeue=True), TASK) == ["job 17 is queued again"]
    monkeypatch.setattr(slurm_step, "_PATIENCE", 0.0)
    stand_ins.put("scontrol", "echo 'Socket timed out on send/recv operation' >&2; exit 1")
    (told,) = conclude(JobEnd(5, requeue=True), TASK)
    assert "Socket timed out" in told


def test_a_run_of_another_command_that_is_done_is_refused() -> None:
    """Its nodes would end with 0, and train nothing."""
    run = RunInStore(parse_endpoint("etcd://h"), "slurm-17")
    done, failed = OutcomeRecord("1", True, 0, "done"), OutcomeRecord("1", False, 1, "failed")
    with pytest.raises(UsageError, match="--run-id of its own"):
        refuse_finished(TASK, run, done)
    refuse_finished(TASK, run, failed)
    refuse_finished(TASK, run, None)
    # Who is queued again, or is an element of several, may well come when the job is done.
    refuse_finished(replace(TASK, restarts=1), run, done)
    refuse_finished(ELEMENT, run, done)


def test_the_rest_of_an_array_is_cancelled(stand_ins: StandIns) -> None:
    stand_ins.put("scancel", "")
    assert conclude(JobEnd(0, cancel=True), ELEMENT) == []
    assert stand_ins.calls() == ["scancel --state=PENDING 17"]
