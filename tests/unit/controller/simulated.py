"""A small cluster in memory: it does what plans say, and checks each plan on the way."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from elastic_runtime.controller.decide.decision import decide
from elastic_runtime.controller.decide.groups import quota_groups
from elastic_runtime.controller.decide.job_types import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    Action,
    AgentReport,
    ApplyManifest,
    ApplyPodGroup,
    CheckPod,
    CreatePod,
    DeleteJob,
    DeleteOwned,
    DeletePod,
    DeletePodGroup,
    EtcdView,
    JobEvent,
    JobPlan,
    NoteTopology,
    Observed,
    PatchPod,
    PodView,
    Problem,
)
from elastic_runtime.controller.decide.rollout import REFUSED
from tests.unit.controller.jobs import job, template_of

if TYPE_CHECKING:
    from collections.abc import Callable

BEGINNING = 1_750_000_000.0
_MANY = 20


class Cluster:
    """One ElasticJob, and what there is of it.

    Args:
        job: the ElasticJob.
        address: the cluster IP that a new Service gets; "" for none yet.
        etcd_starts: the job's etcd is ready as soon as it is made; else it waits for ``run``.
    """

    def __init__(self, job: Any, address: str = "10.0.0.7", etcd_starts: bool = True) -> None:
        self.job = copy.deepcopy(job)
        self.now = BEGINNING
        self.address = address
        self.etcd_starts = etcd_starts
        self.pods: dict[str, PodView] = {}
        self.services: dict[str, str] = {}
        self.etcd: EtcdView | None = None
        self.pdb: int | None = None
        self.guarded = False
        self.checks = 0
        self.checked = ""
        self.report: AgentReport | None = None
        self.problems: tuple[Problem, ...] = ()
        self.events: list[JobEvent] = []
        self.manifests: dict[str, Any] = {}
        self.gangs: set[tuple[str, str]] = set()
        self.deleted = False
        self.last = JobPlan()
        self._made = 0

    # ------------------------------------------------------------ the controller's part

    @property
    def status(self) -> Any:
        return self.job.get("status") or {}

    def observed(self) -> Observed:
        return Observed(
            pods=tuple(self.pods.values()),
            services=dict(self.services),
            etcd=self.etcd,
            pdb=self.pdb,
            etcd_guarded=self.guarded,
            checked=self.checked,
            report=self.report,
            problems=self.problems,
        )

    def decide(self) -> JobPlan:
        """The plan for what is there now, which is left as it is."""
        before = json.dumps(self.job, sort_keys=True)
        plan = decide(self.job, self.observed(), self.now)
        assert json.dumps(self.job, sort_keys=True) == before, "the plan changed its input"
        return plan

    def step(self) -> JobPlan:
        """Decides once, and does it."""
        plan = self.decide()
        self._check(plan)
        self.last, self.checked = plan, ""
        for action in self._done(plan):
            self._do(action)
        if not self.deleted:
            self.job["status"] = json.loads(json.dumps(plan.status))  # as the API server keeps it
            self.events.extend(plan.events)
        return plan

    def settle(self) -> JobPlan:
        """Decides until there is nothing to do."""
        for _ in range(_MANY):
            before = self.status
            plan = self.step()
            if self.deleted or (not self._to_do(plan) and plan.status == before):
                assert not plan.events, "something is announced again and again"
                return plan
        raise AssertionError(f"no end of {plan.actions} in {plan.status}")

    def _done(self, plan: JobPlan) -> list[Action]:
        """What comes of a plan: nothing is made behind a template that is refused."""
        made = (CreatePod, ApplyManifest, ApplyPodGroup)
        first = [one for one in plan.actions if not isinstance(one, (*made, CheckPod))]
        for action in plan.actions:
            if isinstance(action, (*made, CheckPod)):
                first.append(action)
                if isinstance(action, CheckPod) and self._refuses:
                    break
        return first

    @property
    def _refuses(self) -> bool:
        return any(problem.reason == REFUSED for problem in self.problems)

    def _to_do(self, plan: JobPlan) -> list[Action]:
        """What is left to do; a template that was refused is checked again with pauses."""
        made = (CheckPod, CreatePod, ApplyManifest, ApplyPodGroup)
        return [one for one in plan.actions if not (self._refuses and isinstance(one, made))]

    def _do(self, action: Action) -> None:
        match action:
            case CreatePod():
                self._create(action)
            case CheckPod():
                assert action.manifest["metadata"]["name"] not in self.pods
                self.checks += 1
                if not self._refuses:
                    self.checked = action.mark
            case DeletePod():
                self._delete(action)
            case PatchPod():
                self._patch(action)
            case ApplyPodGroup():
                self.gangs.add((action.gang, action.manifest["metadata"]["name"]))
            case DeletePodGroup():
                self.gangs.discard((action.gang, action.name))
            case ApplyManifest(manifest=manifest):
                self._apply(manifest)
            case DeleteOwned(kind="Service"):
                del self.services[action.name]
            case DeleteOwned(kind="PodDisruptionBudget"):
                if action.name.endswith("-etcd"):
                    self.guarded = False
                else:
                    self.pdb = None
            case NoteTopology():
                pod = self.pods[action.name]
                assert (pod.uid, pod.node, pod.topology) == (action.uid, action.node, "")
                self.pods[action.name] = replace(pod, topology=action.node)
            case DeleteJob():
                self.deleted = True
            case _:
                raise AssertionError(action)

    def _create(self, action: CreatePod) -> None:
        meta = action.manifest["metadata"]
        name, labels, notes = meta["name"], meta["labels"], meta["annotations"]
        assert name not in self.pods, f"{name} is still there"
        assert int(labels["replica-index"]) == action.index
        self._made += 1
        group = labels.get(quota_groups.GROUP_LABEL, "")
        queued = quota_groups.QUEUE_LABEL in labels
        self.pods[name] = PodView(
            name,
            action.index,
            f"u{self._made}",
            attempt=int(labels["elastic.pytorch.org/attempt"]),
            template=notes["elastic.pytorch.org/template"],
            settings=notes["elastic.pytorch.org/settings"],
            gates=(quota_groups.GATE,) if queued else (),
            held=queued,
            group=group,
            topology=notes.get("elastic.pytorch.org/topology"),
        )
        self.manifests[name] = action.manifest
        if group:
            self.now += 0.002  # the next one of this index has another name
        self._check_group(group)

    def _apply(self, manifest: Any) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "Service":
            headless = manifest["spec"].get("clusterIP") == "None"
            self.services[name] = "None" if headless else self.address
        elif kind == "PodDisruptionBudget":
            if name.endswith("-etcd"):
                self.guarded = True
            else:
                self.pdb = manifest["spec"]["minAvailable"]
        else:
            self._made += 1
            container, meta = manifest["spec"]["containers"][0], manifest["metadata"]
            self.etcd = EtcdView(
                name,
                f"u{self._made}",
                phase=RUNNING if self.etcd_starts else PENDING,
                ready=self.etcd_starts,
                template=meta["annotations"]["elastic.pytorch.org/template"],
                image=container["image"],
                created_at=self.now,
            )

    def _delete(self, action: DeletePod) -> None:
        if self.etcd and self.etcd.uid == action.uid:
            self.etcd = None
            return
        pod = self.pods[action.name]
        assert pod.uid == action.uid
        if pod.phase == RUNNING or (pod.held and pod.group):
            self.pods[action.name] = replace(pod, deleting=True)
        else:
            del self.pods[action.name]

    def _patch(self, action: PatchPod) -> None:
        pod = self.pods[action.name]
        assert pod.uid == action.uid
        if "annotations" in action.metadata:
            assert not pod.final, "said twice"
            self.pods[action.name] = replace(pod, final=True)
        else:
            assert pod.held and pod.deleting and (pod.phase != RUNNING or not pod.node)
            del self.pods[action.name]

    # ------------------------------------------------------------ Kueue's part

    def _members(self, group: str) -> list[PodView]:
        return [pod for pod in self.pods.values() if pod.group == group]

    def _size(self, group: str) -> int:
        name = self._members(group)[0].name
        return int(self.manifests[name]["metadata"]["annotations"][quota_groups.COUNT_ANNOTATION])

    def _check_group(self, group: str) -> None:
        """No more pods than its size, or Kueue deletes one; and all of one kind."""
        if not group:
            return
        members = self._members(group)
        active = [pod for pod in members if pod.phase != FAILED and (pod.node or not pod.deleting)]
        assert len(active) <= self._size(group), f"{group} has too many pods"
        shapes = {
            json.dumps(self.manifests[pod.name]["spec"]["containers"][0].get("resources"))
            for pod in members
        }
        assert len(shapes) == 1, f"{group} has pods of different kinds"
        # It frees those that have a successor.
        gone = [pod for pod in members if pod not in active]
        for pod in gone[: max(len(gone) + len(active) - self._size(group), 0)]:
            if pod.deleting:
                del self.pods[pod.name]

    def admit(self, *indices: int) -> Self:
        """There is quota for groups that are complete, and for pods alone; without an index for
        all."""
        for pod in list(self.pods.values()):
            wanted = not indices or pod.index in indices
            if not wanted or not pod.gates or pod.deleting:
                continue
            fellows = [one for one in self._members(pod.group) if not one.deleting]
            whole = not pod.group or len(fellows) == self._size(pod.group)
            for one in fellows if pod.group and whole else [pod] if whole else []:
                self.pods[one.name] = replace(self.pods[one.name], gates=())
        return self

    def take_quota(self, index: int) -> Self:
        """Kueue takes a pod away; with its group, if it has one."""
        taken = self._at(index)
        for pod in self._members(taken.group) if taken.group else [taken]:
            if pod.phase == RUNNING and not pod.ended:
                self.pods[pod.name] = replace(pod, deleting=True, quota_taken="preempted")
        return self

    def quota_is_kept(self) -> list[str]:
        """The groups for which Kueue keeps quota though none of their pods is active."""
        kept = []
        for group in {pod.group for pod in self.pods.values() if pod.group and pod.held}:
            members = self._members(group)
            over = all(pod.phase in (FAILED, SUCCEEDED) for pod in members)
            good = sum(pod.phase == SUCCEEDED for pod in members) == self._size(group)
            if over and not good and not any(pod.final for pod in members):
                kept.append(group)
        return kept

    def _at(self, index: int) -> PodView:
        """The pod with an index; that which was made last."""
        found = [pod for pod in self.pods.values() if pod.index == index]
        return max(found, key=lambda pod: (not pod.deleting, int(pod.uid[1:])))

    # ------------------------------------------------------------ what must always hold

    def condition(self, kind: str) -> Any:
        """A condition; an empty one if there is none."""
        return next((c for c in self.status.get("conditions", ()) if c["type"] == kind), {})

    def holds(self, kind: str) -> bool:
        """Whether a condition is true."""
        return bool(self.condition(kind).get("status") == "True")

    def expect(self, kind: str, holds: bool, reason: str, *words: str) -> None:
        """Asserts what a condition says: whether it holds, why, and words of its message."""
        told = self.condition(kind)
        assert (told.get("status"), told.get("reason")) == (str(holds), reason), told
        for text in words:
            assert text in told["message"], (text, told)

    @property
    def ended(self) -> bool:
        return self.holds("Succeeded") or self.holds("Failed")

    def _check(self, plan: JobPlan) -> None:
        kinds = [each["type"] for each in plan.status.get("conditions", ())]
        assert len(set(kinds)) == len(kinds)
        told = {each["type"]: each for each in plan.status.get("conditions", ())}
        true = {kind for kind, each in told.items() if each["status"] == "True"}
        assert not {"Succeeded", "Failed"} <= true
        if {"Succeeded", "Failed", "Suspended"} & true:
            assert not {"Running", "Restarting"} & true
        if {"Succeeded", "Failed"} & true:
            assert plan.status["completionTime"]
        created = [each.index for each in plan.actions if isinstance(each, CreatePod)]
        assert len(set(created)) == len(created), "two pods of one index"
        doomed = [each.uid for each in plan.actions if isinstance(each, DeletePod)]
        assert len(set(doomed)) == len(doomed)
        for count in ("restartCount", "attempt"):
            assert plan.status.get(count, 0) >= self.status.get(count, 0), f"{count} shrank"
        if self.ended:
            self._check_final(plan, told)
        elif "Running" in true:
            run = sum(pod.runs for pod in self.pods.values())
            assert run >= plan.status["memory"]["launch"][0] >= 1, "Running, while too few run"
        if not self.ended and not true & {"Succeeded", "Failed"} and not self.suspended:
            self._check_minimum(plan, set(doomed))

    def _check_final(self, plan: JobPlan, told: Any) -> None:
        for kind in ("Succeeded", "Failed"):
            assert told.get(kind, {}) == self.condition(kind), "terminal is terminal"
        ended = plan.status["completionTime"]
        assert self.status.get("completionTime", ended) == ended
        assert not any(isinstance(each, CreatePod | ApplyManifest) for each in plan.actions)

    def _check_minimum(self, plan: JobPlan, doomed: set[str]) -> None:
        attempt = plan.status.get("attempt", 0)
        run = [pod for pod in self.pods.values() if pod.runs and pod.attempt == attempt]
        taken = [pod for pod in run if pod.uid in doomed]
        least = self.job["spec"]["minReplicas"]
        launched = (plan.status.get("memory") or {}).get("launch", [least])[0]
        waits = any(pod.gates for pod in self.pods.values() if pod.index < launched)
        if len(run) < launched and waits and self.job["spec"].get("scheduling"):
            # They train nothing, and hold quota that the minimum waits for.
            taken = [pod for pod in taken if pod.index < launched]
        assert not taken or len(run) - len(taken) >= least, "below min by our own hand"

    @property
    def suspended(self) -> bool:
        return bool(self.job["spec"].get("suspend"))

    # ------------------------------------------------------------ the others' part
    # Each of these gives the cluster back, so that what follows from it can be asked for at once.

    def edit(self, **spec: Any) -> Self:
        """A user changes the spec; ``replicas`` is the one of the workers."""
        replicas = spec.pop("replicas", None)
        if replicas is not None:
            self.job["spec"]["replicaSpecs"]["Worker"]["replicas"] = replicas
        self.job["spec"].update(spec)
        self.job["metadata"]["generation"] += 1
        return self

    def change_template(self, image: str = "img:2", **container: Any) -> Self:
        """A user changes the container of the workers: its image, and what else is given."""
        template_of(self.job)["spec"]["containers"][0].update(image=image, **container)
        return self.edit()

    def wait(self, seconds: float) -> Self:
        """Time passes; it may also be set back."""
        self.now += seconds
        return self

    def wake(self) -> Self:
        """It is the moment for which the last plan has asked."""
        self.now = self.last.wake_at
        return self

    def settle_until(self, happened: Callable[[], bool]) -> float:
        """Settles, and again whenever a plan has asked for it, until something is so.

        Returns:
            How many seconds it took.
        """
        began = self.now
        self.settle()
        while not happened():
            self.wake().settle()
        return self.now - began

    def say(self, **report: Any) -> Self:
        """The agents say this of their job from now on."""
        self.report = AgentReport(**report)
        return self

    def in_round(self, number: int, nodes: int) -> Self:
        """The agents are in this round."""
        return self.say(round=number, world=nodes, nodes=nodes, ready=True)

    def change(self, index: int, **fields: Any) -> Self:
        """A pod changes."""
        pod = self._at(index)
        self.pods[pod.name] = replace(pod, **fields)
        return self

    def change_etcd(self, **fields: Any) -> Self:
        """The pod of the job's own etcd changes."""
        assert self.etcd is not None
        self.etcd = replace(self.etcd, **fields)
        return self

    def run(self, *indices: int, ago: float = 15.0) -> Self:
        """The kubelet has started pods; without an index all that wait.

        So long ago that agents which can report would have done so.
        """
        for pod in list(self.pods.values()):
            wanted = not indices or pod.index in indices
            if wanted and pod.phase == PENDING and not pod.deleting and not pod.gates:
                self.change(
                    pod.index,
                    phase=RUNNING,
                    ready=True,
                    node=pod.node or "n1",
                    started_at=self.now - ago,
                    unschedulable="",
                    waiting_reason="",
                )
        if self.etcd and self.etcd.phase == PENDING:
            self.change_etcd(phase=RUNNING, ready=True, waiting_reason="")
        return self

    def end(self, index: int, code: int | None, reason: str = "", message: str = "") -> Self:
        """A pod ends by itself."""
        phase = SUCCEEDED if code == 0 and not reason else FAILED
        ended = {"exit_code": code, "reason": reason, "finished_at": self.now}
        return self.change(index, phase=phase, ready=False, message=message, **ended)

    def delete(self, index: int) -> Self:
        """Somebody else deletes a pod."""
        return self.change(index, deleting=True)

    def vanish(self, *indices: int) -> Self:
        """Pods that are being deleted are gone; with an index, whatever is there."""
        for name, pod in list(self.pods.items()):
            if pod.index in indices if indices else pod.deleting:
                if pod.held and pod.group and not indices:  # only its containers have ended
                    self.pods[name] = replace(pod, phase=FAILED, ready=False, exit_code=5)
                else:
                    del self.pods[name]
        return self

    @property
    def indices(self) -> list[int]:
        """Of the pods that are there and stay."""
        return sorted(pod.index for pod in self.pods.values() if not pod.deleting)

    @property
    def leaving(self) -> list[int]:
        """Of the pods that are being deleted."""
        return sorted(pod.index for pod in self.pods.values() if pod.deleting)

    def worker(self, index: int) -> Any:
        """The container of the pod with an index, as its manifest has it."""
        return self.manifests[self._at(index).name]["spec"]["containers"][0]

    def reasons(self, kind: str = "") -> list[str]:
        """Of all events so far."""
        return [event.reason for event in self.events if kind in ("", event.type)]


def begun(made: Any, address: str = "10.0.0.7", etcd_starts: bool = True) -> Cluster:
    """A cluster with a job for which everything was made that can be; its pods do not run yet."""
    cluster = Cluster(made, address, etcd_starts)
    cluster.settle()
    return cluster


def running(replicas: int = 2, **spec: Any) -> Cluster:
    """A job whose pods run."""
    cluster = begun(job(replicas=replicas, **spec))
    cluster.run().settle()
    assert cluster.holds("Running")
    return cluster
