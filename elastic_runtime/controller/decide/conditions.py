"""What is said about a job that has not ended: its conditions Running and Restarting, and what
keeps it from running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.controller.decide.groups.quota_groups import GATE, waits_for_minimum
from elastic_runtime.controller.decide.job_types import FAILED, SUCCEEDED, Problem
from elastic_runtime.controller.decide.pod_failures import Meaning
from elastic_runtime.controller.decide.status_builder import RESTARTING, RUNNING
from elastic_runtime.controller.spec.job_spec import TEMPLATE
from elastic_runtime.errors import EXIT_STORE_UNREACHABLE
from elastic_runtime.limits import (
    FIRST_REPORT_TIMEOUT,
    PLACEMENT_TIMEOUT,
    SLOW_POD_START,
    STORE_PROBLEM_TIMEOUT,
)

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import EtcdView, PodView
    from elastic_runtime.controller.decide.plan_context import PlanContext

_STARTS = ("ContainerCreating", "PodInitializing")
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_NO_CONTAINER = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",  # of a container beside the worker's, or of etcd
)


def find_problems(context: PlanContext) -> None:
    """Collects what is wrong, what matters most first: without a store nothing else comes about.

    The kubelet's and the scheduler's own messages change from one try to the next, so that only
    their meaning is repeated.
    """
    found = context.problems
    found.extend(context.observed.problems)
    if context.observed.etcd and not context.spec.endpoint:
        found.extend(_etcd_problems(context, context.observed.etcd))
    found.extend(_store_problems(context))
    waiting = [pod for pod in context.pods if pod.waiting_reason and not pod.deleting]
    no_image = [pod for pod in waiting if pod.waiting_reason in _NO_IMAGE]
    if no_image:
        found.append(_image_problem(context, no_image[0]))
    found.extend(
        _container_problem(context, p) for p in waiting[:1] if p.waiting_reason in _NO_CONTAINER
    )
    found.extend(_secret_problems(context))
    homeless = [pod for pod in context.pods if not pod.deleting and _is_unplaced(context, pod)]
    if homeless and len(context.running) < context.enough:
        found.append(_placement_problem(context, homeless))


def _image_problem(context: PlanContext, pod: PodView) -> Problem:
    images = context.spec.images
    named = (field for field, image in images.items() if image and image in pod.waiting_message)
    field = next(named, next(iter(images)))
    text = f"the image {images[field]!r} cannot be pulled; kubectl describe pod {pod.name} says why"
    return Problem("ImagePullFailed", text, field)


def _container_problem(context: PlanContext, pod: PodView) -> Problem:
    said = " ".join(pod.waiting_message.split())[:200]
    named = (field for field, name in context.spec.secrets.items() if f'"{name}"' in said)
    field = next(named, f"{TEMPLATE}.spec")
    return Problem(pod.waiting_reason, f"{pod.name} cannot start: {said}", field)


def _secret_problems(context: PlanContext) -> list[Problem]:
    """Whether pods wait so long that a Secret may be what they wait for.

    The controller may not read Secrets, and the kubelet tells the pod's events only.
    """
    for pod in context.pods:
        waits = pod.waiting_reason in _STARTS and not pod.deleting and pod.created_at
        if not waits or not context.spec.secrets:
            continue
        late = pod.created_at + SLOW_POD_START
        if late > context.now:
            context.wake_at(late)
            continue
        field, name = next(iter(context.spec.secrets.items()))
        text = (
            f"{pod.name} does not start; is there a Secret {name!r} in the namespace "
            f"{context.spec.namespace}? kubectl describe pod {pod.name} says why"
        )
        return [Problem("PodsNotStarting", text, field)]
    return []


def _placement_problem(context: PlanContext, homeless: list[PodView]) -> Problem:
    describe = f"kubectl describe pod {homeless[0].name} says why"
    claim = context.spec.checkpoint.claim if context.spec.checkpoint else ""
    if claim and f'persistentvolumeclaim "{claim}"' in homeless[0].unschedulable:
        text = f"the claim {claim!r} cannot be used; {describe}"
        return Problem("ClaimMissing", text, "spec.checkpoint.claimName")
    text = (
        f"there is no place for {len(homeless)} pods, and the job needs {context.enough}; "
        f"{describe}"
    )
    return Problem("Unschedulable", text, f"{TEMPLATE}.spec")


def _etcd_problems(context: PlanContext, etcd: EtcdView) -> list[Problem]:
    if etcd.waiting_reason in _NO_IMAGE:
        # A pod of an older template says which one it wants; it is replaced soon.
        image = etcd.image or context.spec.etcd.image or context.etcd_image
        text = (
            f"the image {image!r} of the job's etcd cannot be pulled; kubectl describe pod "
            f"{etcd.name} says why"
        )
        return [Problem("ImagePullFailed", text, "spec.etcd.image")]
    if etcd.waiting_reason in _NO_CONTAINER:
        text = f"{etcd.name} cannot start; kubectl logs {etcd.name}, or describe pod, says why"
        return [Problem(etcd.waiting_reason, text, "spec.etcd")]
    if _is_unplaced(context, etcd):
        text = f"there is no place for {etcd.name}; kubectl describe pod {etcd.name} says why"
        return [Problem("Unschedulable", text, "spec.etcd")]
    if etcd.phase in (FAILED, SUCCEEDED) and not etcd.deleting:
        text = f"{etcd.name} has ended, and is replaced; kubectl describe pod {etcd.name} says why"
        return [Problem("EtcdNotReady", text, "spec.etcd")]
    if context.is_slow(etcd):
        what = "is being deleted, and does not go" if etcd.deleting else "is not ready"
        text = f"{etcd.name} {what}; kubectl describe pod {etcd.name}, or logs, says why"
        return [Problem("EtcdNotReady", text, "spec.etcd")]
    return []


def _is_unplaced(context: PlanContext, pod: PodView | EtcdView) -> bool:
    """Whether a pod has no place, and has had the time to get one.

    The scheduler says so of every pod for which it has to make room, or whose volume is on its way.
    """
    return bool(pod.unschedulable) and context.has_passed(PLACEMENT_TIMEOUT, pod.unplaced_since)


def _store_problems(context: PlanContext) -> list[Problem]:
    """Whether pods ended because the store did not answer, and none is in a round since."""
    # What agents said counts as long as any is there: they may all have left since.
    if context.report and context.report.round and context.running:
        return []
    for index, slot in sorted(context.status.memory.slots.items()):
        if slot.code != EXIT_STORE_UNREACHABLE:
            continue
        successor = _running_at(context, index, slot.uid)
        if successor is not None and successor.started_at:
            trusted = successor.started_at + STORE_PROBLEM_TIMEOUT
            if trusted <= context.now:
                continue
            context.wake_at(trusted)
        where = context.endpoint or "etcd"
        text = f"{where} does not answer, or refuses the job ({slot.why})"
        field = "spec.rdzvEndpoint" if context.spec.endpoint else "spec.etcd"
        return [Problem("StoreUnreachable", text, field)]
    return []


def _running_at(context: PlanContext, index: int, not_uid: str) -> PodView | None:
    """The pod that runs at an index, if it is not this one."""
    for pod in context.running:
        if pod.index == index and pod.uid != not_uid:
            return pod
    return None


# ---------------------------------------------------------------- conditions


def set_running(context: PlanContext) -> None:
    """Sets Running and Restarting."""
    why_not = _why_not(context)
    status, memory = context.status, context.status.memory
    state = f"{len(context.running)} of {context.wanted} pods run"
    gated = _gated(context)
    if why_not is None and gated:
        state += f"; {_waiting_for_quota(context, gated)}"
    if why_not is None:
        memory.begun = True
        told = f"{state}; {context.problems[0]}" if context.problems else state
        if status.set_condition(RUNNING, True, "EnoughPods", told):
            status.add_event("Running", state.partition(";")[0])
    else:
        reason, message = why_not
        status.set_condition(
            RUNNING, False, reason, f"{state}, {context.enough} are needed; {message}"
        )
    _set_restarting(context, why_not is None)


def _why_not(context: PlanContext) -> tuple[str, str] | None:
    """Why the job does not run; None if it does."""
    short = len(context.running) < context.enough
    trains = bool(context.report and context.report.round)
    stuck = [each for each in context.problems if short or (not trains and _is_of_store(each))]
    if stuck:
        return stuck[0].reason, str(stuck[0])
    if context.status.memory.done:
        return ("Ending", "training is done") if short else None
    if short:
        return _waits_for(context)
    report, begun = context.report, context.status.memory.begun
    etcd = context.observed.etcd
    if report is not None and not report.round:
        return "Rendezvous", "the nodes are forming the first round"
    if report is None and not begun and not context.spec.endpoint and not (etcd and etcd.ready):
        return "WaitingForEtcd", "the job's etcd starts"
    if report is None and not begun and _may_still_report(context):
        return "Rendezvous", "the agents start"
    return None


def _is_of_store(problem: Problem) -> bool:
    return problem.reason == "StoreUnreachable" or problem.field.startswith("spec.etcd")


def _may_still_report(context: PlanContext) -> bool:
    """Whether the agents are so young that they may have had no time to say anything."""
    starts = sorted(pod.started_at for pod in context.running)
    return not context.has_passed(FIRST_REPORT_TIMEOUT, starts[context.enough - 1])


def _waits_for(context: PlanContext) -> tuple[str, str]:
    if not context.endpoint:
        return "WaitingForEtcd", "the job's etcd has no address yet"
    if context.is_ahead(context.status.memory.until):
        return "BackOff", "the next attempt waits"
    if context.ending:
        return "Ending", "pods of the last attempt are ending"
    if not context.store_serves:
        return "WaitingForEtcd", "the job's etcd starts"
    if gated := _gated(context):
        kueue = GATE in gated[0].gates
        return ("WaitingForQuota" if kueue else "Gated"), _waiting_for_quota(context, gated)
    return "PodsPending", "the others start"


def _gated(context: PlanContext) -> list[PodView]:
    """The pods that the scheduler is not to look at yet, those that wait for quota first."""
    gated = [pod for pod in context.pods if pod.gates and not pod.deleting]
    return sorted(gated, key=lambda pod: GATE not in pod.gates)


def _waiting_for_quota(context: PlanContext, gated: list[PodView]) -> str:
    first = gated[0]
    if GATE not in first.gates:
        return f"{first.name} waits behind the scheduling gate {first.gates[0]}"
    waiting = sum(GATE in pod.gates for pod in gated)
    queue = context.spec.scheduling.queue
    where = f" of the queue {queue!r}" if queue else ""
    what = f"kubectl describe workload {first.group}" if first.group else "kubectl get workloads"
    subject = "1 pod waits" if waiting == 1 else f"{waiting} pods wait"
    advice = ""
    alone = (pod for pod in gated if not pod.group and pod.index < context.launch[0])
    if context.spec.scheduling.kueue and any(alone):
        # Its group may have quota for it, and cannot take it any more.
        advice = (
            "; a pod of the minimum waits alone, as its group cannot take it: suspend the job, "
            "wait until it is, and resume it, and they are one group again"
        )
    return f"{subject} for quota{where} ({what}){advice}"


def _set_restarting(context: PlanContext, runs: bool) -> None:
    """Restarting holds from the end of a pod until its replacement runs, or has ended itself."""
    status, memory = context.status, context.status.memory
    left = {pod.index for pod in context.pods if _stays_ended(context, pod)}
    open_ = [
        slot
        for index, slot in sorted(memory.slots.items())
        if slot.why and index < context.wanted and _running_at(context, index, slot.uid) is None
        if index not in left and not _lacks_quota(context, index)
    ]
    if memory.done:
        status.set_condition(RESTARTING, False, "Done", "training is done")
    elif open_:
        status.set_condition(
            RESTARTING, True, "PodReplaced", "; ".join(slot.why for slot in open_[:3])
        )
    elif memory.begun and not runs:
        status.set_condition(RESTARTING, True, "PodsLost", "pods were lost and are being replaced")
    elif status.attempt and not memory.begun:
        pass  # as it was set when the attempt was ordered
    else:
        status.set_condition(RESTARTING, False, "Running", "all pods run again")


def _lacks_quota(context: PlanContext, index: int) -> bool:
    """Whether a pod above the minimum waits for quota: that may last, and nothing is wrong."""
    if index < context.launch[0]:
        return False
    present = next((pod for pod in context.pods if pod.index == index), None)
    return bool(present.gates) if present else waits_for_minimum(context, index)


def _stays_ended(context: PlanContext, pod: PodView) -> bool:
    """Whether a pod has ended and is left so, as a rule of the job's asks."""
    ended = pod.ended and not pod.deleting
    return ended and context.end_of(pod).meaning is Meaning.LEAVE
