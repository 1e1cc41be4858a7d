"""Whatever happens to pods and specs, in whatever order: no plan breaks a rule, and all settles.

The rules themselves are checked by ``simulated.Cluster`` at each plan.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastic_runtime.controller.decide.job_types import (
    FAILED,
    PENDING,
    RUNNING,
    EtcdView,
    PodView,
    Problem,
)
from elastic_runtime.controller.decide.rollout import REFUSED
from tests.unit.controller.jobs import job
from tests.unit.controller.simulated import Cluster

HIGHEST = 6
SIZES = st.integers(1, 4)
CODES = st.sampled_from([0, 1, 2, 3, 4, 5, 42, 128, 137, 143, 255, None])
REASONS = st.sampled_from(["", "", "Evicted", "OOMKilled", "NodeLost", "OutOfcpu"])
QUEUES: list[dict[str, str]] = [
    {"queue": "team"},
    {"queue": "team", "priorityClass": "base", "surplusPriorityClass": "low"},
    {"queue": "team", "gang": "coscheduling"},
    {"queue": "team", "gang": "volcano"},
]
RULES: list[dict[str, Any]] = [
    {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}},
    {"action": "FailJob", "onReasons": ["OOMKilled"]},
]
POLICIES = st.sampled_from(["OnFailure", "Always", "ExitCode", "Never"])
SPECS = st.fixed_dictionaries(
    {
        "worker": st.fixed_dictionaries({"restartPolicy": POLICIES}),
        "cleanPodPolicy": st.sampled_from(["All", "Running", "None"]),
        "backoffLimit": st.integers(0, 3),
        "spares": st.integers(0, 2),
        "activeDeadlineSeconds": st.sampled_from([None, 300]),
        "ttlSecondsAfterFinished": st.sampled_from([None, 30]),
        "failurePolicy": st.sampled_from([{"rules": []}, {"rules": RULES}]),
        "rdzvEndpoint": st.sampled_from([None, "etcd:2379"]),
        "rollout": st.sampled_from(["OnRecreate", "Rolling"]),
        "topology": st.sampled_from([None, {"nodeLabels": ["rack"]}]),
        "scheduling": st.sampled_from([None, *QUEUES]),
    }
)


class Life(RuleBasedStateMachine):
    """A job among a kubelet, a scheduler, users and other controllers."""

    @initialize(
        low=SIZES,
        more=st.integers(0, 3),
        over=st.integers(0, 3),
        spec=SPECS,
        address=st.sampled_from(["", "10.0.0.7"]),
        etcd_starts=st.booleans(),
    )
    def submit(
        self, low: int, more: int, over: int, spec: dict[str, Any], address: str, etcd_starts: bool
    ) -> None:
        sizes = {"replicas": low + min(over, more), "minReplicas": low, "maxReplicas": low + more}
        made = job(**sizes, **spec)
        self.cluster = Cluster(made, address, etcd_starts)
        self.away = False

    # ------------------------------------------------------------ the controller

    @rule()
    def one_plan(self) -> None:
        if not self.cluster.deleted:
            self.cluster.step()

    @rule(away=st.booleans())
    def the_controller_is_away_or_back(self, away: bool) -> None:
        self.away = away

    @rule(seconds=st.sampled_from([0.3, 1, 7, 31, 120, 3600]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds

    # ------------------------------------------------------------ the cluster

    def _some(self, pick: int, *phases: str) -> PodView | None:
        found = [pod for pod in self.cluster.pods.values() if pod.phase in phases]
        return found[pick % len(found)] if found else None

    @rule(pick=st.integers(0, 9))
    def a_pod_starts(self, pick: int) -> None:
        if pod := self._some(pick, PENDING):
            self.cluster.run(pod.index)

    @rule()
    def all_pods_start(self) -> None:
        self.cluster.run()

    @rule(pick=st.integers(0, 9), all_=st.booleans())
    def there_is_quota(self, pick: int, all_: bool) -> None:
        gated = [pod.index for pod in self.cluster.pods.values() if pod.gates]
        if gated:
            self.cluster.admit(*([] if all_ else [gated[pick % len(gated)]]))

    @rule(pick=st.integers(0, 9))
    def quota_is_taken_back(self, pick: int) -> None:
        """Of a pod beyond the minimum, or of the minimum as a whole."""
        held = [pod for pod in self.cluster.pods.values() if pod.held and pod.runs]
        if held:
            self.cluster.take_quota(held[pick % len(held)].index)

    @rule(pick=st.integers(0, 9), code=CODES, reason=REASONS)
    def a_pod_ends(self, pick: int, code: int | None, reason: str) -> None:
        if pod := self._some(pick, RUNNING):
            self.cluster.end(pod.index, code, reason)

    @rule(pick=st.integers(0, 9))
    def a_pod_is_refused_by_its_node(self, pick: int) -> None:
        pod = self._some(pick, PENDING)
        if pod and not pod.gates:
            self.cluster.end(pod.index, None, "OutOfcpu")

    @rule(pick=st.integers(0, 9))
    def a_pod_finds_no_place_or_no_image(self, pick: int) -> None:
        pod = self._some(pick, PENDING)
        if pod and not pod.gates:
            if pick % 2:
                self.cluster.change(pod.index, unschedulable=f"0/{pick} nodes are available")
            else:
                self.cluster.change(pod.index, waiting_reason="ImagePullBackOff")

    @rule(pick=st.integers(0, 9))
    def somebody_deletes_a_pod(self, pick: int) -> None:
        if pod := self._some(pick, RUNNING):
            self.cluster.delete(pod.index)

    @rule(pick=st.integers(0, 9))
    def a_pod_vanishes(self, pick: int) -> None:
        if pod := self._some(pick, PENDING, RUNNING, FAILED):
            self.cluster.vanish(pod.index)

    @rule()
    def deleted_pods_are_gone(self) -> None:
        self.cluster.vanish()

    @rule()
    def services_have_addresses(self) -> None:
        for name in self.cluster.services:
            self.cluster.services[name] = self.cluster.services[name] or "10.0.0.7"

    @rule(gone=st.booleans())
    def etcd_fails(self, gone: bool) -> None:
        if self.cluster.etcd:
            failed = EtcdView(self.cluster.etcd.name, "e", phase=FAILED)
            self.cluster.etcd = None if gone else failed

    @rule(ready=st.booleans(), reason=st.sampled_from(["", "ImagePullBackOff"]))
    def etcd_is_slow_or_ready(self, ready: bool, reason: str) -> None:
        if self.cluster.etcd:
            self.cluster.change_etcd(ready=ready, waiting_reason="" if ready else reason)

    @rule(pick=st.integers(0, 9), node=st.sampled_from(["a", "b"]))
    def a_pod_and_etcd_are_placed(self, pick: int, node: str) -> None:
        pod = self._some(pick, PENDING, RUNNING)
        if pod and not pod.gates:
            self.cluster.change(pod.index, node=node)
        if self.cluster.etcd:
            self.cluster.change_etcd(node="a")

    @rule(tag=st.integers(1, 3))
    def change_image_of_etcd(self, tag: int) -> None:
        if not self.cluster.job["spec"].get("rdzvEndpoint"):
            self.cluster.edit(etcd={"image": f"etcd:{tag}"})

    @rule(blocks=st.booleans())
    def something_is_forbidden(self, blocks: bool) -> None:
        self.cluster.problems = (Problem("QuotaExceeded", "no more pods", blocks=blocks),)

    @rule()
    def the_template_is_refused(self) -> None:
        self.cluster.problems = (Problem(REFUSED, "unknown field", "spec"),)

    @rule()
    def nothing_is_forbidden(self) -> None:
        self.cluster.problems = ()

    @rule(number=st.integers(0, 3), step=st.integers(-1, 99), lost=st.integers(0, 3))
    def agents_report(self, number: int, step: int, lost: int) -> None:
        said = {"round": number, "world": 2 * number, "step": step, "ready": number > 0}
        nodes = len(self.cluster.pods) if number else 0
        self.cluster.say(**said, restarts={"lost": lost, "planned": 1}, nodes=nodes)

    @rule()
    def agents_are_out_of_reach(self) -> None:
        self.cluster.report = None

    # ------------------------------------------------------------ users

    @rule(replicas=SIZES)
    def scale(self, replicas: int) -> None:
        spec = self.cluster.job["spec"]
        low, high = spec["minReplicas"], spec["maxReplicas"]
        self.cluster.edit(replicas=max(low, min(replicas, high)))

    @rule(low=SIZES, more=st.integers(0, 2))
    def change_bounds(self, low: int, more: int) -> None:
        """Also to such that the present size does not fit."""
        self.cluster.edit(minReplicas=low, maxReplicas=low + more)

    @rule(tag=st.integers(1, 3), cpu=st.sampled_from(["1", "1", "2"]))
    def change_template(self, tag: int, cpu: str) -> None:
        resources = {"requests": {"cpu": cpu}}
        self.cluster.change_template(image=f"img:{tag}", resources=resources)

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.cluster.edit(suspend=suspend)

    # ------------------------------------------------------------ what must always hold

    @precondition(lambda self: not self.cluster.deleted and not self.away)
    @invariant()
    def the_controller_comes_to_an_end_with_what_there_is_to_do(self) -> None:
        self.cluster.settle()

    def teardown(self) -> None:
        """When the world is kind again, all jobs come to where they are asked to be."""
        cluster = getattr(self, "cluster", None)
        if cluster is None or cluster.deleted:
            return
        cluster.problems = ()
        cluster.report = None
        spec = cluster.job["spec"]
        cluster.edit(replicas=spec["minReplicas"])
        for _ in range(8):
            cluster.settle()
            if cluster.deleted:
                return
            cluster.vanish()
            self.services_have_addresses()
            cluster.admit()
            if cluster.etcd:
                cluster.change_etcd(ready=True, waiting_reason="")
            for pod in list(cluster.pods.values()):
                if pod.phase == PENDING:
                    cluster.change(pod.index, unschedulable="", waiting_reason="")
            cluster.run()
            cluster.now += 40
        cluster.settle()
        self._settled(cluster)

    def _settled(self, cluster: Cluster) -> None:
        if cluster.deleted:
            return
        if cluster.ended or cluster.suspended:
            assert cluster.quota_is_kept() == []
            assert not cluster.gangs or cluster.pods
        if cluster.ended:
            clean = cluster.job["spec"].get("cleanPodPolicy")
            assert clean == "None" or not any(pod.runs for pod in cluster.pods.values())
        elif cluster.suspended:
            assert cluster.holds("Suspended")
            assert not cluster.pods
        elif cluster.status["memory"].get("done"):
            assert any(pod.runs for pod in cluster.pods.values())  # they end by themselves
        else:
            run = sum(pod.runs for pod in cluster.pods.values())
            assert run >= cluster.job["spec"]["minReplicas"]
            assert cluster.holds("Running")
            assert not cluster.holds("Restarting")


Life.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLife = pytest.mark.timeout(400)(Life.TestCase)
