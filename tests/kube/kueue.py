"""A stand-in for Kueue: it gates pods, admits them by quota, preempts, and holds what it counts.

It does with pods what the sources of Kueue do (``kubernetes-sigs/kueue`` at ff69552, of August
2026); each rule says where it stands there. A pod costs 1, whatever it asks for; there is one
ClusterQueue, in which a higher priority preempts a lower one (``withinClusterQueue:
LowerPriority``), and what does not fit is passed over (``BestEffortFIFO``).
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.kube.kinds import POD
from tests.kube.store import Refusal, now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.kube.kinds import Kind
    from tests.kube.store import Object, Store

_KUEUE = "kueue.x-k8s.io"
_QUEUE, _CLASS = f"{_KUEUE}/queue-name", f"{_KUEUE}/priority-class"
_GROUP, _COUNT = f"{_KUEUE}/pod-group-name", f"{_KUEUE}/pod-group-total-count"
_ROLE, _RETRIABLE = f"{_KUEUE}/role-hash", f"{_KUEUE}/retriable-in-group"
MANAGED, GATE = f"{_KUEUE}/managed", f"{_KUEUE}/admission"


@dataclass
class Workload:
    """What is admitted as a whole.

    Attributes:
        roles: how many pods of each kind it has.
        priority: the higher goes first, and takes from the lower.
        since: in which order workloads came.
        admitted: it has its quota; 0: not, else in which order they were admitted.
        absent: pods of it are missing, so that it is not admitted.
        evicted: why it loses its quota, until its pods have ended; "": it does not.
        finished: it has ended, and needs no quota.
        reclaimed: pods that have succeeded, whose quota was given back.
    """

    roles: dict[str, int]
    priority: int
    since: int
    admitted: int = 0
    absent: bool = False
    evicted: str = ""
    finished: bool = False
    reclaimed: int = 0

    @property
    def cost(self) -> int:
        """What it takes of the quota."""
        return sum(self.roles.values()) - self.reclaimed


@dataclass
class Kueue:
    """Looks after the pods with the label of a queue, until it is stopped.

    Attributes:
        store: of the cluster.
        quota: how many pods may run.
        classes: the priorities by the names of WorkloadPriorityClasses.
        workloads: by the group's name, or ``pod/<uid>`` of a pod alone.
        history: the names of all that were admitted, in order.
    """

    store: Store
    quota: int
    classes: dict[str, int] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    _count: int = 0
    _stopped: bool = False
    _unfinished: bool = False

    def __post_init__(self) -> None:
        self.store.webhooks.append(self._webhook)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Does nothing more; pods are still gated."""
        with self.store.changed:
            self._stopped = True
            self.store.changed.notify_all()
        self._thread.join(10)

    def set_quota(self, quota: int) -> None:
        """There is more of it, or less; what is admitted stays."""
        with self.store.changed:
            self.quota = quota
            self.store.changed.notify_all()

    def add_rival(self, name: str, cost: int, priority: int) -> None:
        """A workload of somebody else wants quota."""
        with self.store.changed:
            self._count += 1
            self.workloads[f"rival/{name}"] = Workload({"main": cost}, priority, self._count)
            self.store.changed.notify_all()

    def remove_rival(self, name: str) -> None:
        """That has ended."""
        with self.store.changed:
            del self.workloads[f"rival/{name}"]
            self.store.changed.notify_all()

    def was_admitted(self, name: str) -> bool:
        """Whether a rival has ever had its quota."""
        with self.store.lock:
            return f"rival/{name}" in self.history

    def is_admitted(self, name: str) -> bool:
        """Whether a rival has its quota."""
        with self.store.lock:
            return bool(self.workloads[f"rival/{name}"].admitted)

    # ------------------------------------------------------------ pkg/controller/jobs/pod

    def _webhook(self, kind: Kind, item: Object) -> Object:
        """``pod_webhook.go``, Default and validatePodGroupMetadata."""
        meta = item.get("metadata") or {}
        labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
        if kind != POD or _QUEUE not in labels:
            return item
        if (_GROUP in labels) != (_COUNT in notes):
            denied = 'admission webhook "vpod.kb.io" denied the request: '
            raise Refusal(403, "Forbidden", f"{denied}both '{_COUNT}' and '{_GROUP}' should be set")
        spec = item["spec"]
        gates = [*(spec.get("schedulingGates") or ()), {"name": GATE}]
        changed = {
            **meta,
            "labels": {**labels, MANAGED: "true"},
            "annotations": {**notes, _ROLE: notes.get(_ROLE) or _role(spec)},
            "finalizers": [*(meta.get("finalizers") or ()), MANAGED],
        }
        return {**item, "metadata": changed, "spec": {**spec, "schedulingGates": gates}}

    def _work(self) -> None:
        with self.store.changed:
            while not self._stopped:
                before, self._unfinished = -1, False
                while self._unfinished or before != self.store.version:
                    before, self._unfinished = self.store.version, False
                    self._reconcile()
                self.store.changed.wait()

    def _reconcile(self) -> None:
        groups: dict[str, list[Object]] = {}
        for pod in self.store.list(POD, "", f"{MANAGED}=true"):
            meta = pod["metadata"]
            group = meta["labels"].get(_GROUP)
            groups.setdefault(group or f"pod/{meta['uid']}", []).append(pod)
        for name in [name for name in self.workloads if not name.startswith("rival/")]:
            if name not in groups:  # "pod group workload is finalized when all pods are gone"
                del self.workloads[name]
        for name, pods in groups.items():
            if name.startswith("pod/"):
                self._look_at_pod(name, pods[0])
            else:
                self._look_at_group(name, pods)
        self._admit()

    def _look_at_pod(self, name: str, pod: Object) -> None:
        """A pod alone: ``Load`` says at once that one which is being deleted is set free."""
        work = self.workloads.get(name)
        if pod["metadata"].get("deletionTimestamp") or _is_terminated(pod):
            self.workloads.pop(name, None)
            self._finalize([pod])
        elif work is None:
            self.workloads[name] = self._made({_role_of(pod): 1}, pod)
        elif work.evicted:
            self._stop_pods([pod], work.evicted)
        elif work.admitted:
            self._ungate([pod])

    def _look_at_group(self, name: str, pods: list[Object]) -> None:
        """A group: ``ReconcileGenericJob`` of jobframework, with what pods do there."""
        work, count = self.workloads.get(name), int(pods[0]["metadata"]["annotations"][_COUNT])
        active = [pod for pod in pods if _is_active(pod)]
        inactive = [pod for pod in pods if not _is_active(pod)]
        if work is None:
            self._compose(name, active, inactive, count)
            return
        kept = self._match(work, active, inactive)
        if work.finished or self._has_finished(kept, count):
            work.finished, work.admitted = True, 0
            self._finalize(pods)
        elif self._is_refused(work, kept):
            return
        elif work.evicted:
            self._stop_pods(kept, work.evicted)
            if not any(pod["status"]["phase"] == "Running" for pod in kept):
                work.admitted, work.evicted, self._unfinished = 0, "", True
        elif work.admitted:
            self._ungate(kept)

    def _compose(self, name: str, active: list[Object], inactive: list[Object], count: int) -> None:
        """``ConstructComposableWorkload``: all pods have to be there; what is over is deleted."""
        self._finalize(inactive)
        if len(active) < count:
            return
        active = _oldest_first(active)
        self._delete(active[count:])
        roles: dict[str, int] = {}
        for pod in active[:count]:
            roles[_role_of(pod)] = roles.get(_role_of(pod), 0) + 1
        self.workloads[name] = self._made(roles, active[0])

    def _match(self, work: Workload, active: list[Object], inactive: list[Object]) -> list[Object]:
        """``FindMatchingWorkloads``: pods of other roles than the Workload's are not looked at."""
        kept: list[Object] = []
        work.absent = False
        for role, count in work.roles.items():
            here = _oldest_first([pod for pod in active if _role_of(pod) == role])
            gone = [pod for pod in inactive if _role_of(pod) == role]
            work.absent = work.absent or len(here) < count
            self._delete(here[count:])
            replaced = max(min(len(gone), len(gone) + len(here) - count), 0)
            self._finalize(gone[:replaced])
            kept += [*here[:count], *gone[replaced:]]
        return kept

    @staticmethod
    def _is_refused(work: Workload, pods: list[Object]) -> bool:
        """``validateReclaimablePodsUpdate`` of ``workload_webhook.go``: never fewer than before.

        ``ReconcileGenericJob`` ends there with an error, time after time.
        """
        succeeded = sum(pod["status"]["phase"] == "Succeeded" for pod in pods)
        if work.admitted and succeeded < work.reclaimed:
            return True
        work.reclaimed = succeeded
        return False

    @staticmethod
    def _has_finished(pods: list[Object], count: int) -> bool:
        """``Finished``: all have succeeded, or one is not to be replaced and none is active."""
        good = sum(pod["status"]["phase"] == "Succeeded" for pod in pods)
        told = any(
            (pod["metadata"].get("annotations") or {}).get(_RETRIABLE) == "false" for pod in pods
        )
        return good == count or (told and all(_is_terminated(pod) for pod in pods))

    # ------------------------------------------------------------ pkg/scheduler

    def _admit(self) -> None:
        """By priority, then by age; who does not fit may take from those of a lower priority."""
        waiting = [
            (name, one)
            for name, one in self.workloads.items()
            if not (one.admitted or one.absent or one.finished or one.evicted)
        ]
        for name, work in sorted(waiting, key=lambda one: (-one[1].priority, one[1].since)):
            if work.cost <= self._free():
                self._count += 1
                work.admitted, self._unfinished = self._count, True
                self.history.append(name)
            else:
                self._preempt(work)

    def _free(self) -> int:
        return self.quota - sum(one.cost for one in self.workloads.values() if one.admitted)

    def _preempt(self, work: Workload) -> None:
        """``CandidatesOrdering``: the lowest priority first, of these the last admitted."""
        lower = [
            one for one in self.workloads.values() if one.admitted and one.priority < work.priority
        ]
        need, taken = work.cost - self._free(), list[Workload]()
        for one in sorted(lower, key=lambda one: (one.priority, -one.admitted)):
            if need > 0:
                taken.append(one)
                need -= one.cost
        for one in taken[-2::-1]:  # fillBackWorkloads: what is not needed after all
            if need + one.cost <= 0:
                taken.remove(one)
                need += one.cost
        if need <= 0 and not any(one.evicted for one in taken):
            for one in taken:
                one.evicted = "Preempted to accommodate a workload of a higher priority"
                self._unfinished = True

    # ------------------------------------------------------------ what it does to pods

    def _made(self, roles: dict[str, int], pod: Object) -> Workload:
        self._count += 1
        name = pod["metadata"]["labels"].get(_CLASS, "")
        return Workload(roles, self.classes.get(name, 0), self._count)

    def _ungate(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            gates = pod["spec"].get("schedulingGates") or ()
            rest = [gate for gate in gates if gate["name"] != GATE]
            if len(rest) != len(gates) and not pod["metadata"].get("deletionTimestamp"):
                self._change(pod, {"spec": {"schedulingGates": rest or None}})

    def _stop_pods(self, pods: Iterable[Object], why: str) -> None:
        """``Stop``: pods that are gated or have ended are left."""
        for pod in pods:
            gated = pod["spec"].get("schedulingGates")
            if pod["metadata"].get("deletionTimestamp") or gated or _is_terminated(pod):
                continue
            target = {
                "type": "TerminationTarget",
                "status": "True",
                "reason": "WorkloadEvictedDueToPreempted",
                "message": why,
                "lastTransitionTime": now(),
            }
            conditions = [*(pod["status"].get("conditions") or ()), target]
            self._change(pod, {"status": {"conditions": conditions}})
            self._delete([pod], finalize=False)

    def _delete(self, pods: Iterable[Object], finalize: bool = True) -> None:
        """``removeExcessPods``: what is over is set free, and deleted."""
        for pod in pods:
            if finalize:
                self._finalize([pod])
            if not pod["metadata"].get("deletionTimestamp"):
                meta = pod["metadata"]
                self.store.delete(POD, meta["namespace"], meta["name"])

    def _finalize(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            held = pod["metadata"].get("finalizers") or ()
            if MANAGED in held:
                rest = [one for one in held if one != MANAGED]
                self._change(pod, {"metadata": {"finalizers": rest or None}})

    def _change(self, pod: Object, patch: Object) -> None:
        meta = pod["metadata"]
        present = self.store.find(POD, meta["namespace"], meta["name"])
        if present is not None and present["metadata"]["uid"] == meta["uid"]:
            self.store.change(POD, meta["namespace"], meta["name"], patch)


def _role(spec: Object) -> str:
    """``GenerateRoleHash``: what of a pod matters for its admission."""
    containers = [
        [(one.get("resources") or {}).get("requests"), one.get("ports")]
        for kind in ("initContainers", "containers")
        for one in spec.get(kind) or ()
    ]
    names = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "overhead")
    shape: list[Any] = [containers, *(spec.get(name) for name in names)]
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]


def _role_of(pod: Object) -> str:
    return str(pod["metadata"]["annotations"][_ROLE])


def _is_terminated(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def _is_active(pod: Object) -> bool:
    """``isPodRunnableOrSucceeded``."""
    if pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName"):
        return False
    return bool(pod["status"]["phase"] != "Failed")


def _oldest_first(pods: list[Object]) -> list[Object]:
    """``sortActivePods``: those that have a finalizer, then those without a gate, then by age."""
    return sorted(
        pods,
        key=lambda pod: (
            MANAGED not in (pod["metadata"].get("finalizers") or ()),
            bool(pod["spec"].get("schedulingGates")),
            pod["metadata"]["creationTimestamp"],
            pod["metadata"]["name"],
        ),
    )
