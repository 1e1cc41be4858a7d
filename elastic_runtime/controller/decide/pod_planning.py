"""Which objects of a job are to be created and deleted now."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from elastic_runtime.controller.decide import manifests
from elastic_runtime.controller.decide.job_types import (
    FAILED,
    NORMAL,
    PENDING,
    RUNNING,
    SUCCEEDED,
    WARNING,
    Apply,
    CreatePod,
    DeleteOwned,
    DeletePod,
)
from elastic_runtime.controller.decide.plan_context import LONGEST_PAUSE
from elastic_runtime.controller.decide.pod_failures import Meaning, end_of
from elastic_runtime.controller.decide.status_builder import Slot

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_spec import JobSpec
    from elastic_runtime.controller.decide.job_types import Observed, PodView
    from elastic_runtime.controller.decide.plan_context import Work

# A pod that ends sooner after its start than this (seconds) has fallen, and so may the next one.
SHORT_LIFE = 30.0
# Whatever is in the way may go without a word.
LOOK_AGAIN = 60.0


def pause(falls: int) -> int:
    """Seconds to wait before another try: none after the first fall, then 1, 2, 4 … 60."""
    # Beyond this the power only grows.
    return 0 if falls < 2 else min(2 ** min(falls - 2, 6), LONGEST_PAUSE)


# ---------------------------------------------------------------- what stands around the workers


def surround(work: Work) -> None:
    """Sees to the Services, the disruption budget and the job's own etcd."""
    spec, observed = work.spec, work.observed
    if spec.name not in observed.services:
        work.actions.append(Apply(manifests.worker_service(spec), "gives the pods names"))
    if observed.pdb != spec.minimum:
        work.actions.append(
            Apply(manifests.disruption_budget(spec), f"keeps {spec.minimum} pods when nodes drain")
        )
    if spec.endpoint:
        return
    if manifests.etcd_name(spec.name) not in observed.services:
        work.actions.append(Apply(manifests.etcd_service(spec), "the address of the job's etcd"))
    etcd = observed.etcd
    if etcd is None:
        manifest = manifests.etcd_pod(spec, work.etcd_image)
        work.actions.append(Apply(manifest, "the job names no rdzvEndpoint"))
    elif etcd.phase in (FAILED, SUCCEEDED) and not etcd.deleting:
        # Evicted, or its node is gone: the kubelet restarts it in every other case.
        work.actions.append(DeletePod(etcd.name, etcd.uid, 0, f"etcd has ended ({etcd.phase})"))


def dismantle(
    spec: JobSpec, observed: Observed, services: bool = True
) -> list[DeletePod | DeleteOwned]:
    """What stands around the workers of a job that has none any more.

    Args:
        spec: the job's; only its name counts.
        observed: what is there.
        services: also the Services, whose addresses are to change.
    """
    gone: list[DeletePod | DeleteOwned] = []
    why = "no worker is left"
    if observed.pdb is not None:
        gone.append(DeleteOwned("PodDisruptionBudget", spec.name, why))
    etcd = observed.etcd
    if etcd is not None and not etcd.deleting:
        gone.append(DeletePod(etcd.name, etcd.uid, None, why))
    if services:
        ours = (spec.name, manifests.etcd_name(spec.name))
        gone += [DeleteOwned("Service", name, why) for name in ours if name in observed.services]
    return gone


# ---------------------------------------------------------------- which pods go


def clear_former(work: Work) -> None:
    """Removes the pods of earlier attempts."""
    for pod in work.former:
        if not pod.deleting:
            work.actions.append(DeletePod(pod.name, pod.uid, None, "of an earlier attempt"))


def replace_fallen(work: Work) -> None:
    """Notes which pods ended or are being taken away, and removes what has ended."""
    for pod in work.pods:
        if pod.index >= work.wanted:
            continue
        if pod.deleting:
            _note(work, pod, f"{pod.name} is being deleted")
        elif pod.ended:
            end = end_of(work.spec, pod)
            if end.meaning is Meaning.REPLACE:
                _note(work, pod, end.message)
                _remove(work, pod, end.message)


def _note(work: Work, pod: PodView, why: str) -> None:
    """Counts the end of a pod, once."""
    memory = work.draft.memory
    last = memory.slots.get(pod.index)
    if last is not None and last.uid == pod.uid:
        return
    falls = until = 0
    if not pod.deleting:
        short = pod.lifetime < SHORT_LIFE
        falls = (last.falls if last and short else 0) + 1
        until = math.ceil(work.now + pause(falls)) if falls > 1 else 0
    code = 0 if pod.deleting else pod.exit_code or 0
    memory.slots[pod.index] = Slot(pod.uid, falls, until, code, why)
    work.draft.event("PodReplaced", why, NORMAL if pod.deleting else WARNING)
    # Agents that live on count it; if none is left, or none reports, we do.
    alone = not any(other.runs for other in work.pods if other.uid != pod.uid)
    if alone or "round" not in work.draft.values:
        work.draft.count_restarts({"lost": 1})


def _remove(work: Work, pod: PodView, why: str) -> None:
    # Until its successor may come, it stays, with its logs.
    until = work.draft.memory.slots[pod.index].until
    if work.is_ahead(until):
        work.wake_at(until)
    else:
        work.actions.append(DeletePod(pod.name, pod.uid, None, why))


def renew(work: Work) -> None:
    """Removes pods that wait in vain, when the template has changed since.

    This is how a wrong image is mended. Pods that run keep what they run with.
    """
    mark = manifests.template_mark(work.spec)
    for pod in work.pods:
        waits = pod.phase == PENDING and not pod.ended and not pod.deleting
        if waits and pod.index < work.wanted and pod.template != mark:
            work.actions.append(DeletePod(pod.name, pod.uid, None, "the template has changed"))


def shrink(work: Work) -> None:
    """Removes the pods that are too many, the highest index first.

    Pods that run are kept while fewer than the minimum run below them: those have no place yet,
    or are being replaced. (In Kubernetes' words: no surge is given up before it is made good.)
    """
    surplus = [pod for pod in work.pods if pod.index >= work.wanted and not pod.deleting]
    below = sum(pod.runs for pod in work.pods if pod.index < work.wanted)
    needed = max(work.least - below, 0)
    held = {pod.uid for pod in [pod for pod in surplus if pod.runs][:needed]}
    for pod in reversed(surplus):
        if pod.uid not in held:
            why = f"the job is to have {work.wanted} pods"
            work.actions.append(DeletePod(pod.name, pod.uid, None, why))
            work.draft.memory.slots[pod.index] = Slot(pod.uid)
    there = {pod.uid for pod in work.pods}
    slots = work.draft.memory.slots
    for index in [index for index in slots if index >= work.wanted]:
        if slots[index].uid not in there:
            del slots[index]


def remove_waiting(work: Work) -> None:
    """Removes the pods that never ran, when the others are done."""
    for pod in work.pods:
        if not pod.ended and not pod.deleting and pod.phase != RUNNING:
            work.actions.append(DeletePod(pod.name, pod.uid, None, "training is done"))


# ---------------------------------------------------------------- which pods come


def create_missing(work: Work) -> None:
    """Creates the pods that are missing, all at once; none is waited for.

    A name is free when the pod that had it is gone, not before.
    """
    memory, spec = work.draft.memory, work.spec
    if any(problem.blocks for problem in work.observed.problems):
        work.wake_at(work.now + LOOK_AGAIN)
        return
    if not work.endpoint:
        return
    if work.ending:
        return
    taken = {pod.index for pod in work.observed.pods}
    for index in range(work.wanted):
        if index in taken:
            continue
        slot = memory.slots.get(index)
        until = max(memory.until, slot.until if slot else 0)
        if work.is_ahead(until):
            work.wake_at(until)
            continue
        life = int(work.now * 1000)
        # Pods that run may be training where the store does not see them.
        resuming = "round" in work.draft.values and any(pod.runs for pod in work.pods)
        manifest = manifests.worker_pod(
            spec, index, work.draft.attempt, work.endpoint, work.launch, life, resuming
        )
        why = (slot and slot.why) or f"the job is to have {work.wanted} pods"
        work.actions.append(CreatePod(index, manifest, why))
