"""Gangs: the object by which a scheduler knows that the minimum of a job comes together.

One ``PodGroup`` with as many members as ``minReplicas`` is for all pods of a job: those beyond the
minimum are placed like others. The fields are those of the schedulers' own definitions:

- coscheduling: ``scheduling.x-k8s.io/v1alpha1`` of scheduler-plugins;
- Volcano: ``scheduling.volcano.sh/v1beta1``;
- KAI: ``scheduling.run.ai/v2alpha2``, or ``scheduling.kai.nvidia.com`` since 2026. Its pod grouper
  would make a group of one for an owner that it does not know, so pods say that it is not to;
- native: ``scheduling.k8s.io/v1beta1`` of Kubernetes 1.37, with ``spec.schedulingGroup`` in pods.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import ApplyPodGroup, DeletePodGroup
from elastic_runtime.controller.spec.scheduling_spec import COSCHEDULING, KAI, NATIVE, VOLCANO

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import Json
    from elastic_runtime.controller.decide.plan_context import PlanContext
    from elastic_runtime.controller.decide.status_builder import StatusBuilder
    from elastic_runtime.controller.spec.job_spec import JobSpec

Pod = dict[str, Any]

# By whom pods are placed, as these are installed; a template may name another one.
_SCHEDULERS = {
    COSCHEDULING: "scheduler-plugins-scheduler",
    VOLCANO: "volcano",
    KAI: "kai-scheduler",
}


def gang_name(spec: JobSpec, minimum: int) -> str:
    """The name of a job's PodGroup; another one for another minimum, as that cannot be changed.

    Args:
        spec: the job.
        minimum: how many pods have to be placed together.
    """
    text = f"{spec.uid} {minimum} {spec.scheduling.gang}"
    return f"{spec.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def gang_asked_for(spec: JobSpec, minimum: int) -> tuple[str, ...]:
    """Whose PodGroup a job asks for, and its name; empty if for none.

    Args:
        spec: the job.
        minimum: how many pods have to be placed together.
    """
    gang = spec.scheduling.gang
    return (gang, gang_name(spec, minimum)) if gang else ()


def gang_for(context: PlanContext) -> tuple[str, ...]:
    """Whose PodGroup new pods belong to, and its name: that of the pods that are there.

    In another one they would wait for a minimum that never comes.

    Args:
        context: the decision.
    """
    if any(not pod.ended and not pod.deleting for pod in context.pods):
        return context.status.memory.gang
    return gang_asked_for(context.spec, context.launch[0])


def pod_group(spec: JobSpec, gang: str, minimum: int, metadata: Json) -> Json:
    """The PodGroup of a job, without ``apiVersion``.

    Args:
        spec: the job.
        gang: whose it is.
        minimum: how many pods have to be placed together.
        metadata: of an object that belongs to the job, with its name.
    """
    found: dict[str, Any] = {"minMember": minimum}
    if gang == NATIVE:
        found = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    elif gang in (VOLCANO, KAI):
        named = {"queue": spec.scheduling.queue, "priorityClassName": spec.priority_class}
        found |= {name: value for name, value in named.items() if value}
    return {"kind": "PodGroup", "metadata": metadata, "spec": found}


def join_gang(
    spec: JobSpec, gang: tuple[str, ...], surplus: bool, metadata: dict[str, Any], pod: Pod
) -> None:
    """Makes a pod a member of a PodGroup.

    Args:
        spec: the job.
        gang: whose PodGroup, and its name; empty for none.
        surplus: the pod is beyond the minimum.
        metadata, pod: of the manifest; changed. A scheduler that the template names stays.
    """
    if not gang:
        return
    kind, name = gang
    labels, notes = metadata["labels"], metadata["annotations"]
    if kind in _SCHEDULERS:
        pod.setdefault("schedulerName", _SCHEDULERS[kind])
    if kind == COSCHEDULING:
        labels["scheduling.x-k8s.io/pod-group"] = name
    elif kind == VOLCANO:
        notes["scheduling.k8s.io/group-name"] = name
        if surplus:
            notes["volcano.sh/preemptable"] = "true"
    elif kind == KAI:
        notes["pod-group-name"] = name
        notes["kai.scheduler/skip-podgrouper"] = "true"
        if spec.scheduling.queue:
            labels["kai.scheduler/queue"] = spec.scheduling.queue
    else:
        pod["schedulingGroup"] = {"podGroupName": name}


def ensure_gang(context: PlanContext, gang: tuple[str, ...], metadata: Json) -> bool:
    """Has the PodGroup made, which has to be there before the pods.

    It is asked for whenever pods are made, instead of watched: a cluster may have none of its kind.
    Its name is written down first, and it is made by the next decision: nobody would delete one
    that was made and then forgotten.

    Args:
        context: the decision.
        gang: whose, and its name; empty for none.
        metadata: of an object that belongs to the job, without a name.

    Returns:
        Whether pods can be made now.
    """
    memory, minimum = context.status.memory, context.launch[0]
    if memory.gang != gang:
        context.actions += take_gang(context.status)
        memory.gang = gang
        context.wake_at(context.now)
        return not gang
    if gang:
        kind, name = gang
        manifest = pod_group(context.spec, kind, minimum, {**metadata, "name": name})
        context.actions.append(ApplyPodGroup(kind, manifest, f"{minimum} pods come together"))
    return True


def take_gang(status: StatusBuilder) -> list[DeletePodGroup]:
    """What deletes the PodGroup that was made last, when no pod needs it.

    Args:
        status: of the job.
    """
    gang, status.memory.gang = status.memory.gang, ()
    return [DeletePodGroup(gang[0], gang[1], "no pod needs it")] if gang else []
