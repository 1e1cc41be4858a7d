"""What is said and done about what keeps a job from running, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.job_types import PodView, Problem
from tests.unit.controller.jobs import CLASSIC, job, template_of
from tests.unit.controller.simulated import Cluster, begun, running

POD = "spec.replicaSpecs.Worker.template.spec"

# ---------------------------------------------------------------- what keeps it from running


def test_an_invalid_spec_is_told_with_its_field_and_can_be_mended() -> None:
    cluster = begun(job(minReplicas=5))
    cluster.expect("Created", False, "InvalidSpec", "spec.minReplicas: ")
    assert not cluster.holds("Running")
    assert cluster.reasons("Warning") == ["InvalidSpec"]
    cluster.edit(minReplicas=1).settle()
    assert cluster.holds("Created")
    assert cluster.indices == [0, 1]


def test_what_runs_runs_on_under_an_invalid_spec(cluster: Cluster) -> None:
    cluster.edit(minReplicas=9)
    assert not cluster.settle().actions
    assert cluster.holds("Running")
    assert cluster.condition("Created")["reason"] == "InvalidSpec"


def test_an_invalid_spec_hides_no_pods_that_are_missing() -> None:
    cluster = running(2, minReplicas=2, maxReplicas=2)
    cluster.edit(minReplicas=1, maxReplicas=1).vanish(1).settle()
    assert cluster.condition("Running")["reason"] == "InvalidSpec"


def test_an_ended_job_is_cleaned_up_whatever_its_spec_says_now(cluster: Cluster) -> None:
    cluster.end(0, 1).step()
    cluster.edit(minReplicas=9).settle()
    assert cluster.indices == [0]
    cluster.vanish().settle()
    assert (cluster.etcd, cluster.services) == (None, {})


def test_an_image_that_cannot_be_pulled_is_told_with_its_field() -> None:
    cluster = begun(job(replicas=2))
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        for index in (0, 1):
            cluster.change(index, waiting_reason=reason, waiting_message=f"{reason}: …")
        cluster.settle()
    cluster.expect("Running", False, "ImagePullFailed", f"{POD}.containers[0].image", "'img:1'")
    assert cluster.reasons("Warning") == ["ImagePullFailed"]


def test_a_secret_that_may_be_missing_is_told_with_its_field() -> None:
    cluster = begun(job(rdzvEndpoint="etcd:2379", etcd={"tls": {"secretName": "certs"}}))
    for index in (0, 1):
        cluster.change(index, waiting_reason="ContainerCreating", created_at=cluster.now)
    assert cluster.settle().wake_at == cluster.now + 60
    assert not cluster.reasons("Warning")
    cluster.wait(60).settle()
    cluster.expect("Running", False, "PodsNotStarting", "spec.etcd.tls.secretName", "'certs'")


NO_CONTAINER, NO_PULL = "CreateContainerConfigError", "ImagePullBackOff"
PASSWORD = {"rdzvEndpoint": "etcd:2379", "etcd": {"auth": {"secretName": "password"}}}
SECRET, MAP = 'secret "password" not found', 'configmap "password-2" not found'
BACK_OFF = "back-off restarting failed container proxy"
NOWHERE = 'Back-off pulling image "docker.io/library/nowhere:1"'


@pytest.mark.parametrize(
    ("spec", "reason", "message", "why"),
    [
        (PASSWORD, NO_CONTAINER, SECRET, f"secretName: digits-worker-0 cannot start: {SECRET}"),
        (PASSWORD, NO_CONTAINER, MAP, f".template.spec: digits-worker-0 cannot start: {MAP}"),
        ({}, NO_PULL, NOWHERE, f"{POD}.initContainers[0].image"),
        ({}, "CrashLoopBackOff", BACK_OFF, BACK_OFF),
    ],
)
def test_what_the_kubelet_says_is_told_with_its_field(
    spec: dict[str, Any], reason: str, message: str, why: str
) -> None:
    made = job(replicas=1, **spec)
    template_of(made)["spec"]["initContainers"] = [{"name": "data", "image": "nowhere:1"}]
    cluster = begun(made)
    cluster.change(0, waiting_reason=reason, waiting_message=message).settle()
    told = "ImagePullFailed" if reason == NO_PULL else reason
    cluster.expect("Running", False, told, why)


def test_a_wrong_image_can_be_mended(cluster: Cluster) -> None:
    cluster.edit(replicas=3).settle()
    before = {pod.name: pod.uid for pod in cluster.pods.values()}
    cluster.change(2, waiting_reason="ImagePullBackOff").change_template().settle()
    changed = {name for name, uid in before.items() if cluster.pods[name].uid != uid}
    assert changed == {"digits-worker-2"}
    assert cluster.worker(2)["image"] == "img:2"


def test_pods_without_a_place_are_told_when_the_job_needs_them() -> None:
    cluster = begun(job(replicas=2, minReplicas=2))
    cluster.change(1, unschedulable="0/3 nodes are available").run(0).settle()
    assert cluster.condition("Running")["reason"] == "Unschedulable"
    assert cluster.indices == [0, 1]


def test_a_claim_that_is_missing_is_told_with_its_field() -> None:
    cluster = begun(job(replicas=1, checkpoint={"claimName": "disk"}))
    cluster.change(0, unschedulable='persistentvolumeclaim "disk" not found. preemption: …')
    cluster.settle()
    why = "spec.checkpoint.claimName: the claim 'disk'"
    cluster.expect("Running", False, "ClaimMissing", why)


def test_a_store_that_does_not_answer_is_told_with_its_field() -> None:
    cluster = begun(CLASSIC)
    assert (cluster.indices, cluster.etcd, list(cluster.services)) == ([0, 1], None, ["imagenet"])
    cluster.run().settle()
    cluster.wait(10)
    cluster.end(0, 4).end(1, 4).settle()
    cluster.expect("Running", False, "StoreUnreachable", "spec.rdzvEndpoint: etcd-service:2379")
    cluster.run().settle()  # agents that try again do not train yet
    assert not cluster.holds("Running")
    assert cluster.reasons("Warning").count("StoreUnreachable") == 1
    cluster.say(round=1, world=2, ready=True).settle()
    assert cluster.holds("Running")
    # It is told as well of agents that had met there.
    cluster.end(0, 4).end(1, 4).settle()
    assert cluster.condition("Running")["reason"] == "StoreUnreachable"


def test_what_the_operator_knows_to_be_wrong_is_told() -> None:
    cluster = Cluster(job())
    cluster.problems = (Problem("SecretMissing", "there is no Secret 'a'", "spec.etcd.tls"),)
    cluster.settle()
    assert cluster.condition("Running")["reason"] == "SecretMissing"
    assert cluster.reasons("Warning") == ["SecretMissing"]
    assert cluster.indices == [0, 1]


def test_two_jobs_do_not_meet_under_one_name() -> None:
    cluster = Cluster(job())
    cluster.problems = (Problem("RunIdTaken", "by ns/other", "spec.rdzvId", blocks=True),)
    cluster.settle()
    assert not cluster.pods
    cluster.problems = ()
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_pods_of_a_lost_node_do_not_hold_up_the_next_attempt() -> None:
    cluster = running(2, backoffLimit=1)
    cluster.wait(60)
    cluster.change(1, deleting=True, reason="NodeLost").end(0, 1).settle()
    assert cluster.indices == [0]


def test_a_pod_that_is_not_of_this_attempt_says_nothing() -> None:
    cluster = running(2, backoffLimit=2)
    cluster.wait(60).end(0, 1).settle()
    cluster.vanish()
    cluster.pods["stray"] = PodView("stray", 7, "s", attempt=0, phase="Failed", exit_code=1)
    cluster.settle()
    assert cluster.status["attempt"] == 1
    assert "stray" not in cluster.pods


def test_a_clock_that_is_set_back_holds_up_no_pod() -> None:
    cluster = running(1)
    for _ in range(4):  # falls in a row, so that the next pod has to wait
        cluster.end(0, 143).settle()
        cluster.wait(10).settle()
        cluster.run().settle()
    cluster.end(0, 143)
    assert cluster.settle().wake_at > cluster.now
    cluster.wait(-3600).settle()
    cluster.vanish(0).settle()
    assert cluster.indices == [0]


def test_a_clock_that_is_set_back_hides_no_steps() -> None:
    cluster = running(1)
    cluster.say(round=1, world=1, step=5, ready=True).settle()
    cluster.wait(-3600).say(round=1, world=1, step=9, ready=True).settle()
    assert cluster.status["step"] == 9


def test_what_a_newer_controller_has_noted_is_passed_over(cluster: Cluster) -> None:
    cluster.end(0, 143).settle()
    memory = cluster.job["status"]["memory"]
    memory["later"] = 1
    memory["slots"]["0"]["later"] = 1
    cluster.vanish(0).settle()
    assert cluster.indices == [0, 1]
