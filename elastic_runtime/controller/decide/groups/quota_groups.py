"""A job in a queue of Kueue: its minimum is one group of pods, and each further pod is alone.

So Kueue admits the minimum as a whole, takes further pods back one by one when somebody else needs
their quota, and gives them back one by one, while the minimum trains on. Only labels are needed.

What Kueue does with pods and groups (``pkg/controller/jobs/pod`` of its sources at ff69552, of
August 2026, and the proposal ``keps/976-plain-pods``), and what follows from it:

- It holds a new pod with a scheduling gate until it has quota, and each pod with a finalizer.
- A group has a fixed size and one shape: pods that differ in what is counted belong to no Workload
  of it, and wait for ever. So a group is named after its shape, its pods say that they are of it
  (``getRoleHash`` takes their word), and a pod of another shape is alone while others of the
  minimum run.
- A pod of a group that has failed or is deleted keeps its finalizer until another one *of the same
  group* is there, also when nobody wants one. So such a pod does not count as there, the next one
  has another name, and those that have no successor are set free by us: of a suspended job, of one
  that has ended, and of one that was deleted.
- A group has ended when all its pods have succeeded, or when one says that it is not to be
  replaced and none is active. So what is left of a job that has ended says that.
- A pod of a group that has succeeded counts as there, and its quota as given back, for good:
  fewer that have succeeded are refused (``validateReclaimablePodsUpdate``), and nothing is done
  about the group from then on. So such a pod stays while others of its group are there, and who
  takes its place is alone.
- A pod that was deleted by force while it ran counts as there as well. So it is set free at once,
  and the next one comes when it is gone.
- A pod alone that is deleted is set free at once, if Kueue is there: one that was removed from the
  cluster would hold its pods for ever. So those that have ended are set free by us as well.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import FAILED, SUCCEEDED, PatchPod
from elastic_runtime.limits import PLACEMENT_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_runtime.controller.decide.job_types import Observed, PodView
    from elastic_runtime.controller.decide.plan_context import PlanContext
    from elastic_runtime.controller.spec.job_spec import JobSpec

_KUEUE = "kueue.x-k8s.io"
QUEUE_LABEL = f"{_KUEUE}/queue-name"
PRIORITY_LABEL = f"{_KUEUE}/priority-class"
GROUP_LABEL = f"{_KUEUE}/pod-group-name"
COUNT_ANNOTATION = f"{_KUEUE}/pod-group-total-count"
ROLE_ANNOTATION = f"{_KUEUE}/role-hash"
RETRIABLE_ANNOTATION = f"{_KUEUE}/retriable-in-group"
FINALIZER = f"{_KUEUE}/managed"
GATE = f"{_KUEUE}/admission"

# The name of a group is the value of a label.
_LONGEST_LABEL = 63
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
# What Kueue counts of a pod, beside its containers.
_SHAPE = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "runtimeClassName",
    "priorityClassName",
    "topologySpreadConstraints",
    "overhead",
    "resourceClaims",
    "resources",
)


# ---------------------------------------------------------------- what is said to Kueue


def pod_labels(spec: JobSpec, index: int, minimum: int) -> dict[str, str]:
    """The labels by which Kueue takes a pod into its queue; none for a job in no queue of it.

    Args:
        spec: the job.
        index: of the pod.
        minimum: how many pods are the minimum of the present attempt.
    """
    scheduling = spec.scheduling
    if not scheduling.kueue:
        return {}
    surplus = index >= minimum and scheduling.surplus_priority_class
    priority = surplus or scheduling.priority_class
    found = {QUEUE_LABEL: scheduling.queue}
    return {**found, PRIORITY_LABEL: priority} if priority else found


def member_metadata(group: str, minimum: int) -> dict[str, dict[str, str]]:
    """The labels and annotations of a pod that belongs to a group; none for "".

    Args:
        group: its name.
        minimum: its size.
    """
    if not group:
        return {"labels": {}, "annotations": {}}
    # Kueue would compute it from the pod as admission has changed it: a default of the namespace or
    # an injected sidecar that is another one by now, and the group would never take the pod.
    notes = {COUNT_ANNOTATION: str(minimum), ROLE_ANNOTATION: _mark_of(group)}
    return {"labels": {GROUP_LABEL: group}, "annotations": notes}


def member_name(name: str, life: int) -> str:
    """The name of a pod of a group: the one before is still there when it is made.

    Args:
        name: as it would be otherwise.
        life: in milliseconds since 1970.
    """
    return f"{name}-{_short(life)}"


def _short(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text or "0"


# ---------------------------------------------------------------- who belongs to which group


def group_for(context: PlanContext, index: int) -> str:
    """The group that a new pod is to join, perhaps a new one; "" if it is to be alone.

    What there is says which one, so that a group that was begun is completed, whoever has begun it.

    Args:
        context: the decision.
        index: of the pod.
    """
    spec, minimum = context.spec, context.launch[0]
    if not spec.scheduling.kueue or index >= minimum:
        return ""
    succeeded = (pod for pod in context.left_behind if pod.group and _has_succeeded(pod))
    if any(pod.index == index for pod in succeeded):
        return ""
    mark = _shape_mark(spec, minimum)
    fellows = [pod for pod in context.pods if pod.index < minimum]
    # Those whose place is to be taken count as well: the group has its quota for them.
    gone = (pod for pod in context.left_behind if not _is_counted(pod))
    known = [*fellows, *(pod for pod in gone if pod.attempt == context.attempt)]
    joined = {pod.group for pod in known if _mark_of(pod.group) == mark and not pod.final}
    # Who is leaving does not stand for a group that goes on.
    stay = [pod for pod in fellows if not pod.ended and not pod.deleting]
    others = [pod for pod in stay if pod.group not in joined]
    own = {pod.group for pod in known if pod.index == index} & joined
    if own:  # its place is kept, whoever else is alone
        return max(own)
    if others:
        return ""
    if joined:
        return max(joined)
    beginning = hashlib.sha256(f"{spec.uid} {int(context.now * 1000)}".encode()).hexdigest()[:8]
    name = spec.name[: _LONGEST_LABEL - len(mark) - len(beginning) - 2]
    return f"{name}-{mark}-{beginning}"


def _shape_mark(spec: JobSpec, minimum: int) -> str:
    """Tells apart what pods cost: a group is of one kind."""
    pod: Mapping[str, Any] = spec.template["spec"]
    containers = [
        [each.get("resources"), each.get("ports")]
        for kind in ("initContainers", "containers")
        for each in pod.get(kind) or ()
    ]
    shape = [containers, *(pod.get(name) for name in _SHAPE), spec.priority_class]
    asked = [spec.scheduling.queue, spec.scheduling.priority_class, minimum]
    text = json.dumps([shape, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _mark_of(group: str) -> str:
    parts = group.rsplit("-", 2)
    return parts[1] if len(parts) == 3 else ""


def waits_for_minimum(context: PlanContext, index: int) -> bool:
    """Whether a pod is not to be asked for yet, since it could take what the minimum needs.

    Args:
        context: the decision.
        index: of the pod.
    """
    minimum = context.launch[0]
    if not context.spec.scheduling.kueue or index < minimum:
        return False
    admitted = {pod.index for pod in context.pods if not pod.gates}
    return not admitted.issuperset(range(minimum))


def idle_surplus(context: PlanContext) -> list[PodView]:
    """The pods beyond the minimum that keep quota for nothing: the minimum waits, and none trains.

    Kueue may take the minimum and leave some of them: it gives back of what it meant to take
    whatever the other workload does not need (``fillBackWorkloads`` of its ``preemption.go``).
    Successors in a group that has its quota are behind the gate for a moment only, and whoever has
    outlived a fault keeps the state of the training meanwhile.

    Args:
        context: the decision.
    """
    minimum = context.launch[0]
    if not context.spec.scheduling.kueue or len(context.running) >= context.enough:
        return []
    gated = [pod for pod in context.pods if pod.index < minimum and GATE in pod.gates]
    if not any(context.has_passed(PLACEMENT_TIMEOUT, pod.created_at) for pod in gated):
        return []
    return [pod for pod in context.pods if pod.index >= minimum and not pod.deleting]


# ---------------------------------------------------------------- who is only held


def set_aside(observed: Observed) -> tuple[Observed, tuple[PodView, ...]]:
    """Separates the pods of which nothing is left but an object that Kueue holds.

    Args:
        observed: all that is seen.

    Returns:
        The same without them, and them.
    """
    left_behind = tuple(pod for pod in observed.pods if _is_left_behind(pod))
    if not left_behind:
        return observed, ()
    return replace(
        observed, pods=tuple(pod for pod in observed.pods if not _is_left_behind(pod))
    ), left_behind


def _is_left_behind(pod: PodView) -> bool:
    if not (pod.deleting and pod.held):
        return False
    return pod.phase in (SUCCEEDED, FAILED) or not pod.node or pod.forced


def _has_succeeded(pod: PodView) -> bool:
    return pod.phase == SUCCEEDED


def _is_counted(pod: PodView) -> bool:
    """Whether a pod is in the way of a successor.

    One alone has its name; one of a group counts as there (``isPodRunnableOrSucceeded`` of Kueue's
    ``pod_controller.go``), and the successor would be deleted as one too many.
    """
    return not pod.group or (bool(pod.node) and pod.phase != FAILED)


def held_places(context: PlanContext) -> set[int]:
    """The indices for which no pod is to be made yet: a pod that is being set free counts there.

    Args:
        context: the decision.
    """
    counted = (pod for pod in context.left_behind if _is_counted(pod))
    return {pod.index for pod in counted if not _is_awaited(context, pod)}


def set_free(context: PlanContext) -> None:
    """Lets those go for whom no other pod comes into the same group.

    Args:
        context: the decision about a job that has not ended.
    """
    for pod in context.left_behind:
        if not _is_awaited(context, pod):
            context.actions.append(_freed(pod, "Kueue is to hold it no longer"))


def _is_awaited(context: PlanContext, pod: PodView) -> bool:
    """Whether a successor is to come into the group of a pod, or is there and Kueue will see it."""
    if context.spec.suspend or context.status.memory.done or pod.attempt != context.attempt:
        return False
    index = pod.index
    if _is_counted(pod):
        return bool(pod.group) and _has_succeeded(pod) and _has_fellows(context, pod.group)
    present = [one for one in context.pods if one.index == index]
    if present:
        return any(one.group == pod.group for one in present)
    return not pod.final and index < context.launch[0] and group_for(context, index) == pod.group


def _has_fellows(context: PlanContext, group: str) -> bool:
    """Whether a group goes on: pods of it are there, or are to come."""
    gone = (pod for pod in context.left_behind if pod.group == group and not _is_counted(pod))
    return any(pod.group == group for pod in context.pods) or any(
        _is_awaited(context, pod) for pod in gone
    )


def free_all(pods: Iterable[PodView]) -> list[PatchPod]:
    """Lets all go that are only held, of a job that has ended or is not there any more.

    Args:
        pods: all that there are.
    """
    return [_freed(pod, "the job has ended") for pod in pods if _is_left_behind(pod)]


def end_groups(pods: Sequence[PodView]) -> list[PatchPod]:
    """Tells Kueue that no pod of a job comes again, so that it keeps no quota for one.

    Args:
        pods: what is left of a job that has ended.
    """
    told = {pod.group for pod in pods if pod.final}
    patches: dict[str, PatchPod] = {}
    for pod in pods:
        if pod.held and pod.group and pod.group not in told and not pod.deleting:
            patch = {"annotations": {RETRIABLE_ANNOTATION: "false"}}
            why = f"Kueue's group {pod.group} has ended"
            patches[pod.group] = PatchPod(pod.name, pod.uid, patch, why)
    return list(patches.values())


def _freed(pod: PodView, why: str) -> PatchPod:
    patch = {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}
    return PatchPod(pod.name, pod.uid, patch, why)
