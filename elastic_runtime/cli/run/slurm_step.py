"""The nodes of a job under Slurm, started from its batch script: a step with one task on each.

``elastic-run`` in a batch script stays there while ``srun`` starts it once more on every node. It
hosts the store if no other is named, so that a node that is lost takes no store along; and at the
end it gives the job the exit code of the training, and asks Slurm for what follows (``job_end``).

Slurm signals the tasks itself, and the batch script as well. Nothing is passed on to ``srun`` but
what Slurm sends to the batch script alone (``--signal=B:USR1@120``): at SIGTERM ``srun`` would
kill its step.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from elastic_runtime.cli.run_in_store import RunInStore
from elastic_runtime.cli.slurm.job_end import RUNNING
from elastic_runtime.cli.slurm.slurm_calls import SlurmRefused, SlurmSilent, call_slurm
from elastic_runtime.cli.slurm.slurm_settings import port_of, run_of
from elastic_runtime.errors import EXIT_LEFT, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_runtime.cli.slurm.job_end import JobEnd
    from elastic_runtime.cli.slurm.slurm_task import SlurmTask
    from elastic_runtime.config import JobConfig
    from elastic_runtime.protocol.records import OutcomeRecord

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
# Seconds that tasks have to end once the job is over, and those between two looks.
LAST_TASKS = 30.0
LOOK = 5.0
# The same for an element of an array: there may be hundreds, and one store.
RARE_LOOK = 60.0
# Seconds for which Slurm is asked again if it does not answer, and those between two tries.
_PATIENCE, _AGAIN = 600.0, 10.0
_HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def srun_command(
    task: SlurmTask, arguments: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """What starts the nodes: pure.

    Args:
        task: the batch script.
        arguments: of ``elastic-run``, for each node.
        environ: of the batch script.
    """
    nodes = len(task.nodes)
    # Since Slurm 22.05, srun does not take this over by itself.
    cpus = environ.get("SLURM_CPUS_PER_TASK")
    return [
        "srun",
        *(f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *([f"--cpus-per-task={cpus}"] if cpus else []),
        # A node may end, with any code, and the others go on.
        *("--no-kill", "--kill-on-bad-exit=0", "--wait=0"),
        # A single task would be bound to a single core; a node's workers share all of them.
        *("--cpu-bind=none", "--unbuffered"),
        *(sys.executable, "-m", "elastic_runtime", *arguments),
    ]


class SlurmStep:
    """The step of a job. For the main thread only.

    Within ``with`` no signal of Slurm's ends this process: after the step, too, it has to say what
    follows. At the end of it they are ignored: Slurm sends SIGTERM to whom it queues again.

    Args:
        tell: tells people.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: list[int] = []

    def __enter__(self) -> SlurmStep:
        for number in (*_PASSED_ON, *_HELD_BACK):
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number in (*_PASSED_ON, *_HELD_BACK):
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, signum: int, frame: object) -> None:
        self._asked.append(signum)
        self._pass_on(signum)

    def _pass_on(self, signum: int) -> None:
        if self._process is not None and signum in _PASSED_ON:
            self._process.send_signal(signum)

    def run(self, command: Sequence[str], is_over: Callable[[], bool], every: float = LOOK) -> int:
        """Runs the step to its end.

        ``srun`` may wait for a task for ever, such as one whose daemon is gone, or that is stopped.
        So it is ended when the job has been over for a while.

        Args:
            command: of ``srun``.
            is_over: asks whether the job is over, or all nodes have left it.
            every: seconds between two looks.

        Returns:
            What srun returns, the highest exit code of all tasks; if it had to be ended, or the job
            was asked to end before there was one, the code of a node that has left.

        Raises:
            UsageError: there is no srun.
        """
        if self._asked:
            return EXIT_LEFT
        try:
            # In a session of its own: Slurm signals the process group of a batch script.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise UsageError(f"srun cannot be started: {error.strerror or error}") from None
        for signum in self._asked:  # while it was being started
            self._pass_on(signum)
        code = self._await_end(self._process, is_over, every)
        return code if code >= 0 else 128 - code

    def _await_end(
        self, process: subprocess.Popen[bytes], is_over: Callable[[], bool], every: float
    ) -> int:
        over_since = float("inf")
        while time.monotonic() < over_since + LAST_TASKS:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(every)
            over_since = min(over_since, time.monotonic()) if is_over() else float("inf")
        self._tell(
            "all nodes have ended or left, but srun has waited for a task for "
            f"{LAST_TASKS:g} s more: it is ended"
        )
        process.terminate()
        try:
            process.wait(LAST_TASKS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return EXIT_LEFT


def refuse_finished(task: SlurmTask, run: RunInStore, before: OutcomeRecord | None) -> None:
    """Refuses a run that is done although its job has just been started: pure.

    Its nodes would take it for their own, and do nothing.

    Args:
        task: the batch script.
        run: its run.
        before: how that has ended before this step.

    Raises:
        UsageError: it is another command's.
    """
    comes_late = bool(task.array or task.restarts)
    if before is not None and before.succeeded and not comes_late:
        raise UsageError(
            f"the run {run.run_id!r} in {run.endpoint} is done, by an earlier elastic-run: "
            "give each one of a batch script a --run-id of its own"
        )


def how_to_look(task: SlurmTask, config: JobConfig) -> str:
    """The command that shows the state of a job whose store is hosted here: pure."""
    usual = str(config.endpoint).endswith(f":{port_of(task.job)}")
    if usual and config.run_id == run_of(str(task.job)):
        return f"elasticctl status --slurm {task.job}"
    return RunInStore(config.endpoint, config.run_id).status_command()


def conclude(end: JobEnd, task: SlurmTask) -> list[str]:
    """Asks Slurm for what follows from the end of a job.

    Returns:
        What people are to be told, one line each.
    """
    told = [end.reason] if end.reason else []
    wanted: list[Callable[[], str]] = []
    if end.requeue:
        wanted.append(lambda: _requeue(task))
    if end.cancel:
        wanted.append(lambda: call_slurm("scancel", "--state=PENDING", str(task.array)))
    deadline = time.monotonic() + _PATIENCE
    for ask in wanted:
        while True:
            try:
                told.append(ask())
                break
            except SlurmRefused as error:
                # A controller that is started again is away for a moment, and this is the last one
                # who could ask it.
                if isinstance(error, SlurmSilent) and time.monotonic() < deadline:
                    time.sleep(_AGAIN)  # no event says that it answers again
                    continue
                told.append(str(error))
                break
    return [text for text in told if text.strip()]


def _requeue(task: SlurmTask) -> str:
    words = call_slurm("scontrol", "--oneliner", "show", "job", str(task.job)).split()
    state = next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")
    if state != RUNNING:
        why = "cancelled, out of time, or queued again by Slurm itself"
        return f"job {task.name} is {state or 'unknown'} ({why}): elastic-run asks for nothing"
    call_slurm("scontrol", "requeue", task.name)
    return f"job {task.name} is queued again"
