"""The life of an ElasticJob, as the API shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.controller.conftest import NAMESPACE, replaced, wait_until_running
from tests.kube.kinds import BUDGET, JOB, POD, SERVICE

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Scene


@pytest.mark.golden("the controller: a job comes up")
def test_a_job_comes_up(cluster: Scene) -> None:
    submitted = cluster.running(replicas=3)

    made = [*cluster.store.list(POD), *cluster.store.list(SERVICE), *cluster.store.list(BUDGET)]
    for item in made:
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (submitted["metadata"]["uid"], True)
    assert sorted((item["kind"], item["metadata"]["name"]) for item in made) == [
        ("Pod", "digits-etcd"),
        *(("Pod", f"digits-worker-{index}") for index in range(3)),
        ("PodDisruptionBudget", "digits"),
        ("PodDisruptionBudget", "digits-etcd"),  # there is one node, for all of them
        ("Service", "digits"),
        ("Service", "digits-etcd"),
    ]
    worker = cluster.pods("digits")["digits-worker-0"]
    environment = {one["name"]: one for one in worker["spec"]["containers"][0]["env"]}
    address = cluster.store.get(SERVICE, NAMESPACE, "digits-etcd")["spec"]["clusterIP"]
    assert environment["PET_RDZV_ENDPOINT"]["value"] == f"{address}:2379"
    job = cluster.job("digits")
    assert job["spec"] == submitted["spec"], "it is left as the user wrote it"
    assert job["metadata"].keys().isdisjoint({"annotations", "finalizers"})
    status = job["status"]
    assert status["observedGeneration"] == 1
    assert status["startTime"]
    assert cluster.condition("digits", "Created")["status"] == "True"
    cluster.wait_for(lambda: cluster.events("digits"), "an event on the job")


@pytest.mark.golden("the controller: a pod is replaced")
def test_a_pod_that_vanishes_or_is_preempted_is_replaced(cluster: Scene) -> None:
    cluster.running(backoffLimit=0)
    with replaced(cluster, "digits-worker-1"):
        cluster.kubelet.lose(NAMESPACE, "digits-worker-1")
    with replaced(cluster, "digits-worker-0"):
        cluster.store.delete(POD, NAMESPACE, "digits-worker-0", {"gracePeriodSeconds": 5})
    wait_until_running(cluster, "digits", 2)
    assert cluster.condition("digits", "Failed").get("status") != "True"


@pytest.mark.golden("the controller: suspend and resume")
def test_suspending_takes_all_pods_and_resuming_brings_them_back(cluster: Scene) -> None:
    cluster.running()

    cluster.edit(JOB, "digits", {"spec": {"suspend": True}})
    cluster.await_condition("digits", "Suspended")
    assert not cluster.pods("digits")
    assert cluster.condition("digits", "Running")["status"] == "False"

    cluster.edit(JOB, "digits", {"spec": {"suspend": False}})
    wait_until_running(cluster, "digits", 2)
    assert cluster.condition("digits", "Suspended")["status"] == "False"


def test_a_deadline_ends_a_job_that_still_runs(cluster: Scene) -> None:
    cluster.running(activeDeadlineSeconds=2)
    assert cluster.await_condition("digits", "Failed")["reason"] == "DeadlineExceeded"


@pytest.mark.golden("the controller: a job is deleted")
def test_deleting_a_job_leaves_nothing_behind(cluster: Scene) -> None:
    cluster.running()
    cluster.running("other")

    cluster.store.delete(JOB, NAMESPACE, "digits")
    cluster.scale("other", 3)

    # By the time that this is done, what happened to the first one has been seen, too.
    wait_until_running(cluster, "other", 3)
    left = [
        item["metadata"]["name"]
        for kind in (POD, SERVICE, BUDGET)
        for item in cluster.store.list(kind)
        if item["metadata"]["name"].startswith("digits")
    ]
    assert left == []


def test_a_job_of_the_same_name_is_another_job(cluster: Scene) -> None:
    cluster.running()
    cluster.kubelet.removes = False
    cluster.store.delete(JOB, NAMESPACE, "digits")  # its pods are still ending

    again = cluster.submit(replicas=1, maxReplicas=1)

    for name in [*cluster.pods("digits"), *cluster.pods("digits", "etcd")]:
        cluster.kubelet.remove(NAMESPACE, name)
    cluster.kubelet.removes = True
    wait_until_running(cluster, "digits", 1)
    for pod in cluster.pods("digits").values():
        assert pod["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]
