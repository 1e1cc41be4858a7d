"""Which objects of a job are to be created and deleted now."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.controller.decide import etcd_manifests, manifests, rollout
from elastic_runtime.controller.decide.groups.gang_groups import ensure_gang, gang_for
from elastic_runtime.controller.decide.groups.quota_groups import (
    group_for,
    held_places,
    idle_surplus,
    waits_for_minimum,
)
from elastic_runtime.controller.decide.job_types import (
    FAILED,
    NORMAL,
    PENDING,
    RUNNING,
    SUCCEEDED,
    WARNING,
    ApplyManifest,
    CreatePod,
    DeleteOwned,
    DeletePod,
)
from elastic_runtime.controller.decide.pod_failures import WITHOUT_A_ROUND, Meaning, pause
from elastic_runtime.controller.decide.status_builder import PodSlot
from elastic_runtime.limits import BLOCKED_JOB_INTERVAL, SHORT_POD_LIFE

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import EtcdView, Observed, PodView
    from elastic_runtime.controller.decide.plan_context import PlanContext
    from elastic_runtime.controller.spec.job_spec import JobSpec


# ---------------------------------------------------------------- what stands around the workers


def ensure_supporting_objects(context: PlanContext) -> None:
    """Sees to the Services, the disruption budget and the job's own etcd."""
    spec, observed = context.spec, context.observed
    if spec.name not in observed.services:
        context.actions.append(
            ApplyManifest(manifests.worker_service(spec), "gives the pods names")
        )
    if observed.pdb != spec.minimum:
        context.actions.append(
            ApplyManifest(
                manifests.disruption_budget(spec), f"keeps {spec.minimum} pods when nodes drain"
            )
        )
    if not spec.endpoint:
        _ensure_etcd(context)


def _ensure_etcd(context: PlanContext) -> None:
    spec, observed, etcd = context.spec, context.observed, context.observed.etcd
    name = manifests.etcd_name(spec.name)
    if name not in observed.services:
        context.actions.append(
            ApplyManifest(etcd_manifests.etcd_service(spec), "the address of the job's etcd")
        )
    manifest = etcd_manifests.etcd_pod(spec, context.etcd_image)
    mark = manifest["metadata"]["annotations"][manifests.TEMPLATE_ANNOTATION]
    if etcd is None:
        context.actions.append(ApplyManifest(manifest, "the job names no rdzvEndpoint"))
    elif etcd.phase in (FAILED, SUCCEEDED) and not etcd.deleting:
        _replace_etcd(context, etcd)
    elif _cannot_start(context, etcd) and etcd.template not in ("", mark) and not etcd.deleting:
        why = "etcd cannot start, and is to be another one now"
        context.actions.append(DeletePod(etcd.name, etcd.uid, 0, why))


def _replace_etcd(context: PlanContext, etcd: EtcdView) -> None:
    """Deletes an etcd that was evicted, or refused by its node, or is lost with it.

    The kubelet restarts it in every other case. One that ends again and again waits longer and
    longer.
    """
    memory, last = context.status.memory, context.status.memory.etcd
    if last is None or last.uid != etcd.uid:
        short = context.now - etcd.created_at < SHORT_POD_LIFE
        falls = (last.falls if last and short else 0) + 1
        until = math.ceil(context.now + pause(falls)) if falls > 1 else 0
        why = f"{etcd.name} has ended ({etcd.phase})"
        last = memory.etcd = PodSlot(etcd.uid, falls, until, why=why)
        context.status.add_event("EtcdReplaced", why, WARNING)
    if context.is_ahead(last.until):
        context.wake_at(last.until)
    else:
        context.actions.append(DeletePod(etcd.name, etcd.uid, 0, last.why))


def _cannot_start(context: PlanContext, etcd: EtcdView) -> bool:
    """Whether an etcd does not run, and is not about to: nobody gets at what it holds."""
    stuck = etcd.phase == PENDING or bool(etcd.waiting_reason)
    return not etcd.ready and (stuck or context.is_slow(etcd))


def guard_etcd(context: PlanContext) -> None:
    """Has a drain take a worker before the etcd that is on the same node.

    It comes last: that it is refused, since something else has its name, is to hold up no pod.
    """
    if context.spec.endpoint:
        return
    spec, observed, etcd = context.spec, context.observed, context.observed.etcd
    shared = etcd is not None and any(
        pod.node == etcd.node and not pod.ended for pod in observed.pods if pod.node
    )
    if shared and not observed.etcd_guarded:
        why = "a worker on the node of etcd leaves before it"
        context.actions.append(ApplyManifest(etcd_manifests.etcd_guard(spec), why))
    elif observed.etcd_guarded and not shared:
        name, why = manifests.etcd_name(spec.name), "no worker is on the node of etcd"
        context.actions.append(DeleteOwned("PodDisruptionBudget", name, why))


def delete_supporting_objects(
    spec: JobSpec, observed: Observed, services: bool = True
) -> list[DeletePod | DeleteOwned]:
    """What stands around the workers of a job that has none any longer.

    Args:
        spec: the job's; only its name counts.
        observed: what is there.
        services: also the Services, whose addresses are to change.
    """
    gone: list[DeletePod | DeleteOwned] = []
    why = "no worker is left"
    if observed.pdb is not None:
        gone.append(DeleteOwned("PodDisruptionBudget", spec.name, why))
    if observed.etcd_guarded:
        gone.append(DeleteOwned("PodDisruptionBudget", manifests.etcd_name(spec.name), why))
    etcd = observed.etcd
    if etcd is not None and not etcd.deleting:
        gone.append(DeletePod(etcd.name, etcd.uid, None, why))
    if services:
        ours = (spec.name, manifests.etcd_name(spec.name))
        gone += [DeleteOwned("Service", name, why) for name in ours if name in observed.services]
    return gone


# ---------------------------------------------------------------- which pods go


def delete_former_pods(context: PlanContext) -> None:
    """Removes the pods of earlier attempts."""
    for pod in context.former:
        if not pod.deleting:
            context.actions.append(DeletePod(pod.name, pod.uid, None, "of an earlier attempt"))


def replace_ended_pods(context: PlanContext) -> None:
    """Notes which pods ended or are being taken away, and removes what has ended."""
    for pod in context.pods:
        if pod.index >= context.wanted:
            continue
        if pod.deleting:
            taken = f": its quota was taken back ({pod.quota_taken})" if pod.quota_taken else ""
            _record_end(context, pod, f"{pod.name} is being deleted{taken}")
        elif pod.ended:
            rollout.take_back(context, pod)
            end = context.end_of(pod)
            if end.meaning is Meaning.REPLACE:
                _record_end(context, pod, end.message)
                _delete_when_due(context, pod, end.message)


def _record_end(context: PlanContext, pod: PodView, why: str) -> None:
    """Counts the end of a pod, once."""
    memory = context.status.memory
    last = memory.slots.get(pod.index)
    if last is not None and last.uid == pod.uid:
        return
    falls = until = 0
    code = 0 if pod.deleting else pod.exit_code or 0
    number = int(context.status.values.get("round") or 0)
    if not pod.deleting:
        # One that has waited for long, and ends as the one before without a round, is no better
        # than one that ends soon.
        short = pod.lifetime < SHORT_POD_LIFE
        again = code in WITHOUT_A_ROUND and last and (last.code, last.round) == (code, number)
        falls = (last.falls if last and (short or again) else 0) + 1
        until = math.ceil(context.now + pause(falls)) if falls > 1 else 0
    memory.slots[pod.index] = PodSlot(pod.uid, falls, until, code, why, number)
    context.status.add_event("PodReplaced", why, NORMAL if pod.deleting else WARNING)
    if not pod.deleting:
        context.status.note_fault(why)
    # Agents that live on count it; if none is left, or none reports, we do.
    alone = not any(other.runs for other in context.pods if other.uid != pod.uid)
    if alone or "round" not in context.status.values:
        context.status.count_restarts({"lost": 1})


def _delete_when_due(context: PlanContext, pod: PodView, why: str) -> None:
    # Until its successor may come, it stays, with its logs.
    until = context.status.memory.slots[pod.index].until
    if context.is_ahead(until) and (context.is_current(pod) or not context.template_accepted):
        context.wake_at(until)
        return
    # What its successor is made from is something else: it may well be better.
    slots = context.status.memory.slots
    slots[pod.index] = replace(slots[pod.index], until=0)
    context.actions.append(DeletePod(pod.name, pod.uid, None, why))


def delete_outdated_pods(context: PlanContext) -> None:
    """Removes pods that cannot start, when the template has changed since.

    This is how a wrong image is corrected. Pods that run keep what they run with; and while the new
    template is not accepted, nothing could take their place.
    """
    if not context.template_accepted:
        return
    for pod in context.pods:
        waits = pod.phase == PENDING and not pod.ended and not pod.deleting
        if waits and pod.index < context.wanted and not context.is_current(pod):
            context.actions.append(DeletePod(pod.name, pod.uid, None, "the template has changed"))


def scale_down(context: PlanContext) -> None:
    """Removes the pods that are too many, the highest index first.

    Pods that run are kept while fewer than the minimum run below them: those have no place yet,
    or are being replaced. (In Kubernetes' words: no surge is given up before it is made good.)
    """
    surplus = [pod for pod in context.pods if pod.index >= context.wanted and not pod.deleting]
    below = sum(pod.runs for pod in context.pods if pod.index < context.wanted)
    needed = max(context.least - below, 0)
    held = {pod.uid for pod in [pod for pod in surplus if pod.runs][:needed]}
    doomed = context.doomed
    for pod in idle_surplus(context):
        if pod not in surplus and pod.uid not in doomed:
            why = "the minimum has lost its quota, and needs that of this pod"
            context.actions.append(DeletePod(pod.name, pod.uid, None, why))
            context.status.memory.slots[pod.index] = PodSlot(pod.uid)
    for pod in reversed(surplus):
        if pod.uid not in held:
            why = f"the job is to have {context.wanted} pods"
            context.actions.append(DeletePod(pod.name, pod.uid, None, why))
            context.status.memory.slots[pod.index] = PodSlot(pod.uid)
    there = {pod.uid for pod in context.pods}
    slots = context.status.memory.slots
    for index in [index for index in slots if index >= context.wanted]:
        if slots[index].uid not in there:
            del slots[index]


def delete_waiting_pods(context: PlanContext) -> None:
    """Removes the pods that never ran, when the others are done."""
    for pod in context.pods:
        if not pod.ended and not pod.deleting and pod.phase != RUNNING:
            context.actions.append(DeletePod(pod.name, pod.uid, None, "training is done"))


# ---------------------------------------------------------------- which pods come


def create_missing_pods(context: PlanContext) -> None:
    """Creates the pods that are missing, all at once; none is waited for.

    A name is free when the pod that had it is gone, not before. And without a store a pod could
    only wait for it, and give up.
    """
    memory, spec = context.status.memory, context.spec
    if any(problem.blocks for problem in context.observed.problems):
        context.wake_at(context.now + BLOCKED_JOB_INTERVAL)
        return
    if not context.endpoint or not context.store_serves or context.ending:
        return
    taken = {pod.index for pod in context.observed.pods} | held_places(context)
    created: list[CreatePod] = []
    gang, held_back = gang_for(context), waits_for_minimum(context, context.wanted)
    for index in range(context.wanted):
        if index in taken or (held_back and index >= context.launch[0]):
            continue
        slot = memory.slots.get(index)
        until = max(memory.until, slot.until if slot else 0)
        if context.is_ahead(until):
            context.wake_at(until)
            continue
        life = int(context.now * 1000)
        # Pods that run may be training where the store does not see them.
        resuming = "round" in context.status.values and any(pod.runs for pod in context.pods)
        manifest = manifests.worker_pod(
            spec,
            index,
            context.attempt,
            context.endpoint,
            context.launch,
            life,
            resuming,
            group_for(context, index),
            gang,
        )
        why = (slot and slot.why) or f"the job is to have {context.wanted} pods"
        created.append(CreatePod(index, manifest, why))
    if created and ensure_gang(context, gang, manifests.owned_metadata(spec, "", "worker")):
        context.actions += created
