"""What the end of a pod means for its job, and how long to wait before another one: pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from elastic_runtime.controller.decide.job_types import FAILED, SUCCEEDED
from elastic_runtime.controller.spec.job_spec import (
    COUNT,
    FAIL_JOB,
    IGNORE,
    RESTART,
    RESTART_BY_EXIT_CODE,
    RESTART_NEVER,
)
from elastic_runtime.errors import (
    EXIT_CRASHED,
    EXIT_LEFT,
    EXIT_NOT_ENOUGH_NODES,
    EXIT_STORE_UNREACHABLE,
    EXIT_USAGE,
)
from elastic_runtime.limits import POD_PAUSES
from elastic_runtime.reporting.wording import cut

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import PodView
    from elastic_runtime.controller.spec.job_spec import JobSpec


class Meaning(Enum):
    """What follows from the end of a pod."""

    DONE = "done"
    """Training is done; the others end as well."""
    REPLACE = "replace"
    """Not a fault of the script: another pod takes its place, and nothing is counted."""
    LEAVE = "leave"
    """It stays as it ended, and is not replaced."""
    COUNT = "count"
    """The user's code failed; the whole job may be started again."""
    FAIL = "fail"
    """The job has failed, whatever the limits say."""


@dataclass(frozen=True, slots=True)
class PodEnd:
    """The end of a pod.

    Attributes:
        meaning: what follows.
        reason: one word in CamelCase, for conditions.
        message: which pod, how, and why; for people.
    """

    meaning: Meaning
    reason: str
    message: str


# What agents end with though nothing is wrong with the script, and what killed processes end with.
_RETRYABLE = {
    EXIT_NOT_ENOUGH_NODES,
    EXIT_STORE_UNREACHABLE,
    EXIT_LEFT,
    EXIT_CRASHED,
    *(130, 137, 138, 143),
}
# What agents end with that have waited in vain for their first round.
WITHOUT_A_ROUND = (EXIT_NOT_ENOUGH_NODES, EXIT_STORE_UNREACHABLE)
# The cluster took the pod away, or would not have it: of the kubelet, of the scheduler, and of the
# condition DisruptionTarget.
_TAKEN = {
    "Evicted",
    "Preempting",
    "Preempted",
    "PreemptionByScheduler",
    "DeletionByTaintManager",
    "EvictionByEvictionAPI",
    "DeletionByPodGC",
    "TerminationByKubelet",
    "NodeLost",
    "NodeShutdown",
    "NodeAffinity",
    "Terminated",
    "Shutdown",
    "UnexpectedAdmissionError",
    "ContainerStatusUnknown",
}
USAGE_ERROR, POD_FAILED = "UsageError", "PodFailed"
_NO_ROOM = "OutOf"  # OutOfcpu, OutOfmemory, OutOfpods
# The container could not even begin; no other pod of this template will do better.
_NO_START = {"StartError", "ContainerCannotRun"}
# Why a pod fails that says something about what it was made from.
CANNOT_START = {USAGE_ERROR, *_NO_START}
_LONGEST_WORDS = 300
# Of an agent that has left no words.
_KNOWN = {
    EXIT_USAGE: "a flag, a file or a setting is wrong",
    EXIT_NOT_ENOUGH_NODES: "fewer nodes than the minimum came together in time",
    EXIT_STORE_UNREACHABLE: "the rendezvous store did not answer, or refused it",
    EXIT_LEFT: "it was asked to leave",
    EXIT_CRASHED: "its agent has crashed",
}


def end_of(spec: JobSpec, pod: PodView) -> PodEnd:
    """Reads the end of a pod.

    Args:
        spec: the job's, for its policies.
        pod: one that has ended, and was not deleted.

    Returns:
        What follows, and why.
    """
    code, taken = pod.exit_code, _taken(pod)
    how = _how(pod)
    if not taken and (code == 0 or (code is None and pod.phase == SUCCEEDED)):
        return PodEnd(Meaning.DONE, "Done", how)
    for rule in spec.rules:
        if rule.meets(code, pod.reason):
            return PodEnd(_RULES[rule.action], "FailurePolicy", f"{how} (failurePolicy)")
    if spec.restart_policy == RESTART_NEVER:
        return PodEnd(Meaning.FAIL, POD_FAILED, f"{how}; restartPolicy is Never")
    if taken:
        return PodEnd(Meaning.REPLACE, pod.reason, how)
    if code == EXIT_USAGE:
        return PodEnd(Meaning.FAIL, USAGE_ERROR, how)
    if pod.reason in _NO_START:
        return PodEnd(Meaning.FAIL, pod.reason, how)
    if code in _RETRYABLE:
        return PodEnd(Meaning.REPLACE, POD_FAILED, how)
    if spec.restart_policy == RESTART_BY_EXIT_CODE:
        if code is None or code < 128:
            return PodEnd(Meaning.FAIL, POD_FAILED, f"{how}; restartPolicy is ExitCode")
        return PodEnd(Meaning.REPLACE, POD_FAILED, how)
    return PodEnd(Meaning.COUNT, POD_FAILED, how)


_RULES = {
    FAIL_JOB: Meaning.FAIL,
    RESTART: Meaning.REPLACE,
    IGNORE: Meaning.LEAVE,
    COUNT: Meaning.COUNT,
}


def _taken(pod: PodView) -> bool:
    lost = pod.reason in _TAKEN or pod.reason.startswith(_NO_ROOM)
    # With a reason but without a failure it is a note on a pod that ended well before.
    return lost and pod.phase == FAILED


def _how(pod: PodView) -> str:
    code = f"exit code {pod.exit_code}"
    if pod.exit_code is None:  # the worker's container has never begun
        code = "" if pod.reason else "one of its other containers failed"
    known = _KNOWN.get(pod.exit_code or 0, "")
    # The container's word for an exit code that is not 0 says nothing.
    reason = "" if pod.reason in ("Error", "Completed") else pod.reason
    said = cut(pod.message, _LONGEST_WORDS)
    details = ", ".join(part for part in (code, reason, said or known) if part)
    return f"{pod.name} ended: {details}" if details else f"{pod.name} ended"


def pause(falls: int) -> float:
    """Seconds to wait before another try; none after the first fall."""
    return POD_PAUSES.pause(falls - 1) if falls > 1 else 0.0
