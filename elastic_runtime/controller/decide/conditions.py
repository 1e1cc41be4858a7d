"""What is said about a job that has not ended: its conditions Running and Restarting, and what
keeps it from running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.controller.decide.job_spec import TEMPLATE
from elastic_runtime.controller.decide.job_types import Problem
from elastic_runtime.controller.decide.status_builder import RESTARTING, RUNNING
from elastic_runtime.errors import EXIT_STORE_UNREACHABLE

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import EtcdView, PodView
    from elastic_runtime.controller.decide.plan_context import Work

# An agent whose predecessor did not reach the store is believed to run after so long (seconds),
# if it does not say so earlier.
_STORE_PATIENCE = 120.0
# An agent that reports at all does so within this time (seconds); the others are classic images.
_REPORT_PATIENCE = 15.0
# A pod that needs a Secret is looked at more closely after so long (seconds).
_START_PATIENCE = 60.0
_STARTS = ("ContainerCreating", "PodInitializing")
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_NO_CONTAINER = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",  # of a container beside the worker's, or of etcd
)


def find_problems(work: Work) -> None:
    """Collects what is wrong, what matters most first.

    The kubelet's and the scheduler's own messages change from one try to the next, so that only
    their meaning is repeated.
    """
    found = work.problems
    found.extend(work.observed.problems)
    if work.observed.etcd and not work.spec.endpoint:
        found.extend(_of_etcd(work, work.observed.etcd))
    found.extend(_of_store(work))
    waiting = [pod for pod in work.pods if pod.waiting_reason and not pod.deleting]
    no_image = [pod for pod in waiting if pod.waiting_reason in _NO_IMAGE]
    if no_image:
        found.append(_of_image(work, no_image[0]))
    found.extend(_of_container(work, p) for p in waiting[:1] if p.waiting_reason in _NO_CONTAINER)
    found.extend(_of_secrets(work))
    homeless = [pod for pod in work.pods if pod.unschedulable and not pod.deleting]
    if homeless and len(work.running) < work.enough:
        found.append(_of_place(work, homeless))


def _of_image(work: Work, pod: PodView) -> Problem:
    images = work.spec.images
    named = (field for field, image in images.items() if image and image in pod.waiting_message)
    field = next(named, next(iter(images)))
    text = f"the image {images[field]!r} cannot be pulled; kubectl describe pod {pod.name} says why"
    return Problem("ImagePullFailed", text, field)


def _of_container(work: Work, pod: PodView) -> Problem:
    said = " ".join(pod.waiting_message.split())[:200]
    named = (field for field, name in work.spec.secrets.items() if f'"{name}"' in said)
    field = next(named, f"{TEMPLATE}.spec")
    return Problem(pod.waiting_reason, f"{pod.name} cannot start: {said}", field)


def _of_secrets(work: Work) -> list[Problem]:
    """Whether pods wait so long that a Secret may be what they wait for.

    The controller may not read Secrets, and the kubelet tells the pod's events only.
    """
    for pod in work.pods:
        waits = pod.waiting_reason in _STARTS and not pod.deleting and pod.created_at
        if not waits or not work.spec.secrets:
            continue
        late = pod.created_at + _START_PATIENCE
        if late > work.now:
            work.wake_at(late)
            continue
        field, name = next(iter(work.spec.secrets.items()))
        text = (
            f"{pod.name} does not start; is there a Secret {name!r} in the namespace "
            f"{work.spec.namespace}? kubectl describe pod {pod.name} says why"
        )
        return [Problem("PodsNotStarting", text, field)]
    return []


def _of_place(work: Work, homeless: list[PodView]) -> Problem:
    describe = f"kubectl describe pod {homeless[0].name} says why"
    claim = work.spec.checkpoint.claim if work.spec.checkpoint else ""
    if claim and f'persistentvolumeclaim "{claim}"' in homeless[0].unschedulable:
        text = f"the claim {claim!r} cannot be used; {describe}"
        return Problem("ClaimMissing", text, "spec.checkpoint.claimName")
    text = (
        f"there is no place for {len(homeless)} pods, and the job needs {work.enough}; {describe}"
    )
    return Problem("Unschedulable", text, f"{TEMPLATE}.spec")


def _of_etcd(work: Work, etcd: EtcdView) -> list[Problem]:
    if etcd.waiting_reason in _NO_IMAGE:
        image = work.spec.etcd.image or work.etcd_image
        text = f"the image {image!r} of the job's etcd cannot be pulled"
        return [Problem("ImagePullFailed", text, "spec.etcd.image")]
    if etcd.waiting_reason in _NO_CONTAINER:
        text = f"{etcd.name} cannot start; kubectl logs {etcd.name}, or describe pod, says why"
        return [Problem(etcd.waiting_reason, text, "spec.etcd")]
    if etcd.unschedulable:
        text = f"there is no place for {etcd.name}; kubectl describe pod {etcd.name} says why"
        return [Problem("Unschedulable", text, "spec.etcd")]
    return []


def _of_store(work: Work) -> list[Problem]:
    """Whether pods ended because the store did not answer, and none is in a round since."""
    # What agents said counts as long as any is there: they may all have left since.
    if work.report and work.report.round and work.running:
        return []
    for index, slot in sorted(work.draft.memory.slots.items()):
        if slot.code != EXIT_STORE_UNREACHABLE:
            continue
        successor = _at(work, index, slot.uid)
        if successor is not None and successor.started_at:
            trusted = successor.started_at + _STORE_PATIENCE
            if trusted <= work.now:
                continue
            work.wake_at(trusted)
        where = work.endpoint or "etcd"
        text = f"{where} does not answer, or refuses the job ({slot.why})"
        field = "spec.rdzvEndpoint" if work.spec.endpoint else "spec.etcd"
        return [Problem("StoreUnreachable", text, field)]
    return []


def _at(work: Work, index: int, not_uid: str) -> PodView | None:
    """The pod that runs at an index, if it is not this one."""
    for pod in work.running:
        if pod.index == index and pod.uid != not_uid:
            return pod
    return None


# ---------------------------------------------------------------- conditions


def tell_running(work: Work) -> None:
    """Sets Running and Restarting."""
    why_not = _why_not(work)
    draft, memory = work.draft, work.draft.memory
    state = f"{len(work.running)} of {work.wanted} pods run"
    if why_not is None:
        memory.begun = True
        if draft.set(RUNNING, True, "EnoughPods", state):
            draft.event("Running", state)
    else:
        reason, message = why_not
        draft.set(RUNNING, False, reason, f"{state}, {work.enough} are needed; {message}")
    _tell_restarting(work, why_not is None)


def _why_not(work: Work) -> tuple[str, str] | None:
    """Why the job does not run; None if it does."""
    short = len(work.running) < work.enough
    stuck = [each for each in work.problems if short or each.reason == "StoreUnreachable"]
    if stuck:
        return stuck[0].reason, str(stuck[0])
    if work.draft.memory.done:
        return ("Ending", "training is done") if short else None
    if short:
        return _waits_for(work)
    report, begun = work.report, work.draft.memory.begun
    etcd = work.observed.etcd
    if report is not None and not report.round:
        return "Rendezvous", "the nodes come together"
    if report is None and not begun and not work.spec.endpoint and not (etcd and etcd.ready):
        return "WaitingForEtcd", "the job's etcd starts"
    if report is None and not begun and _may_still_report(work):
        return "Rendezvous", "the agents start"
    return None


def _may_still_report(work: Work) -> bool:
    """Whether the agents are so young that they may have had no time to say anything."""
    starts = sorted(pod.started_at for pod in work.running)
    due = starts[work.enough - 1] + _REPORT_PATIENCE
    if due > work.now:
        work.wake_at(due)
    return due > work.now


def _waits_for(work: Work) -> tuple[str, str]:
    if not work.endpoint:
        return "WaitingForEtcd", "the job's etcd has no address yet"
    if work.is_ahead(work.draft.memory.until):
        return "BackOff", "the next attempt waits"
    if work.ending:
        return "Ending", "pods of the last attempt are ending"
    return "PodsPending", "the others start"


def _tell_restarting(work: Work, runs: bool) -> None:
    """Restarting holds from the end of a pod until as many run as before."""
    draft, memory = work.draft, work.draft.memory
    open_ = [
        slot
        for index, slot in sorted(memory.slots.items())
        if slot.why and index < work.wanted and _at(work, index, slot.uid) is None
    ]
    if memory.done:
        draft.set(RESTARTING, False, "Done", "training is done")
    elif open_:
        draft.set(RESTARTING, True, "PodReplaced", "; ".join(slot.why for slot in open_[:3]))
    elif memory.begun and not runs:
        draft.set(RESTARTING, True, "PodsLost", "pods are gone, others take their place")
    elif draft.attempt and not memory.begun:
        pass  # as it was set when the attempt was ordered
    else:
        draft.set(RESTARTING, False, "Running", "all pods run again")
