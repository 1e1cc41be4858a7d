"""What follows from the end of a job's step: pure.

A job under Slurm ends with what its training has come to, not with what one of its processes met:
an agent that was killed has the others go on, and ``srun`` then returns the code of the dead one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.errors import EXIT_DONE, EXIT_LEFT, EXIT_STORE_UNREACHABLE

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import OutcomeRecord

# As ``scontrol show job`` says it. A job that is being cancelled, queued again or ended for its
# time is COMPLETING; one that preemption has only asked to end is still RUNNING.
RUNNING = "RUNNING"
_KILLED = 128
# What kills a job each time, such as too little memory, would do so for ever.
MAX_REQUEUES_AFTER_KILL = 10
# Seconds: who is asked to leave sooner, time and again, has a limit that leaves no time to train.
_SHORT = 180.0


@dataclass(frozen=True)
class JobEnd:
    """What to do at the end of a step.

    Attributes:
        code: the exit code of the batch script.
        requeue: Slurm is to be asked to queue the job again.
        cancel: the elements of the array that have not started are to be cancelled.
        reason: for people; "" if there is nothing to say.
    """

    code: int
    requeue: bool = False
    cancel: bool = False
    reason: str = ""


def end_of_job(
    code: int,
    outcome: OutcomeRecord | None,
    *,
    array: bool,
    requeue: bool,
    leave_code: int,
    restarts: int,
    seconds: float,
) -> JobEnd:
    """Decides how the batch script of a job, or of an element of an array, ends.

    Args:
        code: what srun has returned: the highest code of all tasks.
        outcome: how the run has ended; None: it has not, as far as the store knows.
        array: this is one node of a job that is an array.
        requeue: the user wants the job to come back.
        leave_code: what a node ends with that was asked to leave.
        restarts: how often the job, or the element, has been queued again.
        seconds: how long the step has run.
    """
    if outcome is not None:
        done = outcome.exit_code == EXIT_DONE
        reason = f"srun has ended with {code}, but the job is done" if done and code else ""
        return JobEnd(outcome.exit_code, cancel=array, reason=reason)
    left = code in (EXIT_LEFT, leave_code)
    cut_off = array and code == EXIT_STORE_UNREACHABLE
    if left or cut_off or code > _KILLED:
        why = "asked to leave" if left else f"killed (srun has ended with {code})"
        why = "without its store" if cut_off else why
        whom = "this node was" if array else "the job was"
        if (not left or seconds < _SHORT) and restarts >= MAX_REQUEUES_AFTER_KILL:
            why, requeue = f"{why}, and was queued again {restarts} times: that is enough", False
        return JobEnd(leave_code if left else code, requeue=requeue, reason=f"{whom} {why}")
    return JobEnd(code)
