"""The step of a job under Slurm: how it is started, what reaches it, and what follows its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.run.slurm_step import SlurmStep, conclude, srun_command
from elastic_runtime.cli.slurm.job_end import JobEnd
from elastic_runtime.cli.slurm.slurm_task import SlurmTask
from elastic_runtime.errors import EXIT_LEFT, UsageError
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.stand_ins import StandIns

TASK = SlurmTask(17, ("n0", "n1"), "n0", 2, in_step=False)
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
    with SlurmStep() as step:
        assert step.run(["sh", "-c", "exit 5"]) == 5
    with SlurmStep() as step:
        assert step.run(["sh", "-c", "kill -9 $$"]) == 128 + signal.SIGKILL


def test_without_srun_there_is_no_step() -> None:
    with SlurmStep() as step, pytest.raises(UsageError, match="srun cannot be started: No such"):
        step.run(["no-srun"])


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
    code = step.run(["sh", "-c", text])
    sender.join()
    return code


def test_what_slurm_sends_to_the_batch_script_alone_reaches_the_step(tmp_path: Path) -> None:
    with SlurmStep() as step:
        assert _signalled(step, tmp_path, signal.SIGUSR1) == 5


def test_srun_which_would_kill_its_step_hears_of_no_sigterm(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SlurmStep() as step:
        assert _signalled(step, tmp_path, signal.SIGTERM) == 0
        # Nor does it end this process, which has to say what follows.
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_job_that_is_asked_to_leave_before_its_step_has_none(tmp_path: Path) -> None:
    with SlurmStep() as step:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert step.run(["touch", str(tmp_path / "started")]) == EXIT_LEFT
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
    assert told == "job 17 is not queued again: Slurm has its state as COMPLETING"
    assert len(stand_ins.calls()) == 1


def test_a_site_that_lets_nobody_requeue_is_told(stand_ins: StandIns) -> None:
    refuses = "echo 'Access/permission denied' >&2; exit 1"
    stand_ins.put("scontrol", f"[ $1 = requeue ] && {{ {refuses}; }}; echo JobState=RUNNING")
    (told,) = conclude(JobEnd(5, requeue=True), TASK)
    assert told == "scontrol requeue 17: Access/permission denied"


def test_the_rest_of_an_array_is_cancelled(stand_ins: StandIns) -> None:
    stand_ins.put("scancel", "")
    assert conclude(JobEnd(0, cancel=True), ELEMENT) == []
    assert stand_ins.calls() == ["scancel --state=PENDING 17"]
