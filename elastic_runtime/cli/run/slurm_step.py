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
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.slurm.job_end import RUNNING
from elastic_runtime.cli.slurm.slurm_calls import SlurmRefused, call_slurm
from elastic_runtime.cli.slurm.slurm_settings import port_of, run_of
from elastic_runtime.errors import EXIT_LEFT, RecordError, StoreUnavailable, UsageError
from elastic_runtime.protocol.records import OUTCOME, OutcomeRecord
from elastic_runtime.rendezvous.stores.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_runtime.cli.slurm.job_end import JobEnd
    from elastic_runtime.cli.slurm.slurm_task import SlurmTask
    from elastic_runtime.config import JobConfig

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# A store wants to know how long a lease lasts, and a key to follow; nothing here has either.
_NO_TTL, _NO_KEY = 10.0, "batch-script"


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
    follows.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SlurmStep:
        for number in (*_PASSED_ON, *_HELD_BACK):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, signum: int, frame: object) -> None:
        self._asked.append(signum)
        if self._process is not None and signum in _PASSED_ON:
            self._process.send_signal(signum)

    def run(self, command: Sequence[str]) -> int:
        """Runs the step to its end.

        Returns:
            What srun returns, the highest exit code of all tasks; of a job that was asked to end
            before there was one, that of a node that has left.

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
        code = int(self._process.wait())
        return code if code >= 0 else 128 - code


def how_to_look(task: SlurmTask, config: JobConfig) -> str:
    """The command that shows the state of a job whose store is hosted here: pure."""
    usual = str(config.endpoint).endswith(f":{port_of(task.job)}")
    if usual and config.run_id == run_of(str(task.job)):
        return f"elasticctl status --slurm {task.job}"
    return f"elasticctl status --rdzv-endpoint {config.endpoint} --run-id {config.run_id}"


def read_outcome(config: JobConfig) -> OutcomeRecord | None:
    """How the run has ended, as far as its store knows; None if it has not, or none answers."""
    # It is not to be hosted from here, even if the endpoint names this machine.
    endpoint = replace(config.endpoint, hosted_here=True)
    connect = config.timeouts.connect_timeout
    with suppress(StoreUnavailable, RecordError):
        store = open_store(endpoint, config.run_id, _NO_TTL, connect)
        try:
            store.start(_NO_KEY, lambda event: None)
            for entry in store.read(OUTCOME):
                if entry.key == OUTCOME:
                    return OutcomeRecord.decode(entry.key, entry.value)
        finally:
            store.close()
    return None


def conclude(end: JobEnd, task: SlurmTask) -> list[str]:
    """Asks Slurm for what follows from the end of a job.

    Returns:
        What people are to be told, one line each.
    """
    told = [end.reason] if end.reason else []
    try:
        if end.requeue:
            told.append(_requeue(task))
        if end.cancel:
            call_slurm("scancel", "--state=PENDING", str(task.array))
    except SlurmRefused as error:
        told.append(str(error))
    return told


def _requeue(task: SlurmTask) -> str:
    words = call_slurm("scontrol", "--oneliner", "show", "job", str(task.job)).split()
    state = next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")
    if state != RUNNING:  # cancelled, or queued again already
        return f"job {task.name} is not queued again: Slurm has its state as {state or 'unknown'}"
    call_slurm("scontrol", "requeue", task.name)
    return f"job {task.name} is queued again"
