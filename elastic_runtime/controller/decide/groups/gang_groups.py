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
    text = f"{spec.uid} {minimum} {spec.scheduling.queue} {spec.scheduling.gang}"
    return f"{spec.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def pod_group(spec: JobSpec, minimum: int, metadata: Json) -> Json:
    """The PodGroup of a job, without ``apiVersion``.

    Args:
        spec: the job.
        minimum: how many pods have to be placed together.
        metadata: of an object that belongs to the job, with its name.
    """
    scheduling, group = spec.scheduling, {"minMember": minimum}
    found: dict[str, Any] = group
    if scheduling.gang == NATIVE:
        found = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    elif scheduling.gang in (VOLCANO, KAI):
        named = {"queue": scheduling.queue, "priorityClassName": spec.priority_class}
        found = {**group, **{name: value for name, value in named.items() if value}}
    return {"kind": "PodGroup", "metadata": metadata, "spec": found}


def join_gang(
    spec: JobSpec, index: int, minimum: int, metadata: dict[str, Any], pod: dict[str, Any]
) -> None:
    """Makes a pod a member of its job's PodGroup, if that has one.

    Args:
        spec: the job.
        index: of the pod.
        minimum: how many pods have to be placed together.
        metadata, pod: of the manifest; changed. A scheduler that the template names stays.
    """
    gang = spec.scheduling.gang
    if not gang:
        return
    name, labels, notes = gang_name(spec, minimum), metadata["labels"], metadata["annotations"]
    if gang in _SCHEDULERS:
        pod.setdefault("schedulerName", _SCHEDULERS[gang])
    if gang == COSCHEDULING:
        labels["scheduling.x-k8s.io/pod-group"] = name
    elif gang == VOLCANO:
        notes["scheduling.k8s.io/group-name"] = name
        if index >= minimum:
            notes["volcano.sh/preemptable"] = "true"
    elif gang == KAI:
        notes["pod-group-name"] = name
        notes["kai.scheduler/skip-podgrouper"] = "true"
        if spec.scheduling.queue:
            labels["kai.scheduler/queue"] = spec.scheduling.queue
    else:
        pod["schedulingGroup"] = {"podGroupName": name}


def ensure_gang(context: PlanContext, metadata: Json) -> bool:
    """Has the PodGroup made, which has to be there before the pods.

    It is asked for whenever pods are made, instead of watched: a cluster may have none of its kind.
    Its name is written down first, and it is made by the next decision: nobody would delete one
    that was made and then forgotten.

    Args:
        context: the decision.
        metadata: of an object that belongs to the job, without a name.

    Returns:
        Whether pods can be made now.
    """
    spec, minimum, memory = context.spec, context.launch[0], context.status.memory
    gang = spec.scheduling.gang
    name = gang_name(spec, minimum)
    noted = (gang, name) if gang else ()
    if memory.gang != noted:
        context.actions += take_gang(context.status)
        memory.gang = noted
        context.wake_at(context.now)
        return not gang
    if gang:
        manifest = pod_group(spec, minimum, {**metadata, "name": name})
        context.actions.append(ApplyPodGroup(gang, manifest, f"{minimum} pods come together"))
    return True


def take_gang(status: StatusBuilder) -> list[DeletePodGroup]:
    """What deletes the PodGroup that was made last, when no pod needs it.

    Args:
        status: of the job.
    """
    gang, status.memory.gang = status.memory.gang, ()
    return [DeletePodGroup(gang[0], gang[1], "no pod needs it")] if gang else []
