"""The life of an ElasticJob, as the API shows it."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.controller.conftest import NAMESPACE, wait_until_running
from tests.kube.kinds import BUDGET, JOB, POD, SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.controller.conftest import Running
    from tests.kube.cluster import FakeCluster

    Run = Callable[..., dict[str, Any]]


def names(cluster: FakeCluster, job: str = "digits") -> list[str]:
    """The worker pods of a job that are not being deleted."""
    pods = cluster.pods(job)
    return [name for name, pod in pods.items() if "deletionTimestamp" not in pod["metadata"]]


def scale(cluster: FakeCluster, replicas: int, job: str = "digits") -> None:
    """What ``kubectl scale`` and an HPA do."""
    url = f"{cluster.url}{JOB.path(NAMESPACE, job)}/scale"
    patch = json.dumps({"spec": {"replicas": replicas}}).encode()
    kind = {"Content-Type": "application/merge-patch+json"}
    request = urllib.request.Request(url, patch, kind, method="PATCH")
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200


@pytest.mark.golden("the controller: a job comes up")
def test_a_job_comes_up(cluster: FakeCluster, running: Run) -> None:
    job = running(replicas=3)

    assert names(cluster) == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    made = [*cluster.store.list(POD), *cluster.store.list(SERVICE), *cluster.store.list(BUDGET)]
    for item in made:
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)
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
    status = cluster.job("digits")["status"]
    assert status["observedGeneration"] == 1
    assert status["startTime"]
    assert cluster.condition("digits", "Created")["status"] == "True"
    cluster.wait_for(lambda: cluster.events("digits"), "an event on the job")


def test_the_job_itself_is_left_as_the_user_wrote_it(cluster: FakeCluster, running: Run) -> None:
    submitted = running()

    job = cluster.job("digits")
    assert job["spec"] == submitted["spec"]
    assert "annotations" not in job["metadata"]
    assert "finalizers" not in job["metadata"]


@pytest.mark.golden("the controller: a pod is replaced")
def test_a_pod_that_vanishes_is_replaced(cluster: FakeCluster, running: Run) -> None:
    running()
    lost = cluster.pods("digits")["digits-worker-1"]["metadata"]["uid"]

    cluster.kubelet.lose(NAMESPACE, "digits-worker-1")

    def replaced() -> bool:
        pod = cluster.pods("digits").get("digits-worker-1")
        return pod is not None and pod["metadata"]["uid"] != lost

    cluster.wait_for(replaced, "a new pod in the place of the lost one")


def test_scaling_takes_the_highest_and_waits_for_names(cluster: FakeCluster, running: Run) -> None:
    running(replicas=4)
    cluster.kubelet.removes = False  # pods take their time to end

    scale(cluster, 2)
    cluster.wait_for(lambda: names(cluster) == ["digits-worker-0", "digits-worker-1"], "two go")
    scale(cluster, 3)
    cluster.wait_for(
        lambda: cluster.job("digits")["status"]["observedGeneration"] == 3, "the new size is seen"
    )
    assert len(cluster.pods("digits")) == 4  # the name of what still ends cannot be used

    cluster.kubelet.remove(NAMESPACE, "digits-worker-3")
    cluster.kubelet.remove(NAMESPACE, "digits-worker-2")
    cluster.wait_for(
        lambda: names(cluster) == [f"digits-worker-{index}" for index in range(3)], "three run"
    )


def test_pods_that_find_no_place_come_later(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    cluster.kubelet.capacity = 3  # etcd and two workers
    submit(replicas=4)
    cluster.wait_for(
        lambda: (
            cluster.condition("digits", "Running").get("status") == "True"
            and cluster.job("digits")["status"]["replicaStatuses"]["Worker"]["pending"] == 2
        ),
        "two run and two wait",
    )

    cluster.kubelet.capacity = None
    cluster.kubelet.place_pending()
    wait_until_running(cluster, "digits", 4)


def test_an_image_that_cannot_be_pulled_is_named(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    cluster.kubelet.runs = False
    submit(rdzvEndpoint="etcd.example:2379")
    cluster.wait_for(lambda: len(cluster.pods("digits")) == 2, "two pods")
    for name in cluster.pods("digits"):
        cluster.kubelet.wait_for_image(NAMESPACE, name)

    cluster.wait_for(
        lambda: cluster.condition("digits", "Running").get("reason") == "ImagePullFailed",
        "a condition",
    )
    condition = cluster.condition("digits", "Running")
    assert condition["status"] == "False"
    assert "'train'" in condition["message"]


def test_a_preempted_pod_is_replaced_and_not_counted(cluster: FakeCluster, running: Run) -> None:
    running(backoffLimit=0)
    before = cluster.pods("digits")["digits-worker-0"]["metadata"]["uid"]

    cluster.store.delete(POD, NAMESPACE, "digits-worker-0", {"gracePeriodSeconds": 5})

    def replaced() -> bool:
        pod = cluster.pods("digits").get("digits-worker-0")
        return pod is not None and pod["metadata"]["uid"] != before

    cluster.wait_for(replaced, "a new pod")
    wait_until_running(cluster, "digits", 2)
    assert cluster.condition("digits", "Failed").get("status") != "True"


@pytest.mark.golden("the controller: suspend and resume")
def test_suspending_takes_all_pods_and_resuming_brings_them_back(
    cluster: FakeCluster, running: Run
) -> None:
    running()

    cluster.edit(JOB, "digits", {"spec": {"suspend": True}})
    cluster.wait_for(
        lambda: (
            not cluster.pods("digits")
            and cluster.condition("digits", "Suspended").get("status") == "True"
        ),
        "no pods, and a condition",
    )
    assert cluster.condition("digits", "Running")["status"] == "False"

    cluster.edit(JOB, "digits", {"spec": {"suspend": False}})
    wait_until_running(cluster, "digits", 2)
    assert cluster.condition("digits", "Suspended")["status"] == "False"


def test_a_job_whose_pods_are_done_has_succeeded(cluster: FakeCluster, running: Run) -> None:
    running()

    for name in names(cluster):
        cluster.kubelet.finish(NAMESPACE, name, 0)

    cluster.wait_for(
        lambda: cluster.condition("digits", "Succeeded").get("status") == "True", "success"
    )
    status = cluster.job("digits")["status"]
    assert status["completionTime"]
    assert cluster.condition("digits", "Running")["status"] == "False"


def test_a_job_whose_code_fails_says_which_pod_and_how(cluster: FakeCluster, running: Run) -> None:
    running(worker={"restartPolicy": "ExitCode"}, backoffLimit=0)

    cluster.kubelet.finish(NAMESPACE, "digits-worker-1", 1)

    cluster.wait_for(
        lambda: cluster.condition("digits", "Failed").get("status") == "True", "failure"
    )
    message = cluster.condition("digits", "Failed")["message"]
    assert "digits-worker-1" in message
    assert "1" in message.replace("digits-worker-1", "")


def test_a_job_is_deleted_when_its_time_has_come(cluster: FakeCluster, running: Run) -> None:
    running(ttlSecondsAfterFinished=1)

    for name in names(cluster):
        cluster.kubelet.finish(NAMESPACE, name, 0)

    cluster.wait_for(lambda: cluster.store.find(JOB, NAMESPACE, "digits") is None, "it is gone")
    cluster.wait_for(lambda: not cluster.store.list(POD), "its pods are gone")


def test_a_deadline_ends_a_job_that_still_runs(cluster: FakeCluster, running: Run) -> None:
    running(activeDeadlineSeconds=2)

    cluster.wait_for(
        lambda: cluster.condition("digits", "Failed").get("status") == "True", "failure"
    )
    assert cluster.condition("digits", "Failed")["reason"] == "DeadlineExceeded"


@pytest.mark.golden("the controller: a job is deleted")
def test_deleting_a_job_leaves_nothing_behind(cluster: FakeCluster, running: Run) -> None:
    running()
    running("other")

    cluster.store.delete(JOB, NAMESPACE, "digits")
    cluster.edit(JOB, "other", {"spec": {"replicaSpecs": {"Worker": {"replicas": 3}}}})

    # By the time that this is done, what happened to the first one has been seen, too.
    wait_until_running(cluster, "other", 3)
    left = [
        item["metadata"]["name"]
        for kind in (POD, SERVICE, BUDGET)
        for item in cluster.store.list(kind)
        if item["metadata"]["name"].startswith("digits")
    ]
    assert left == []


def test_a_job_of_the_same_name_is_another_job(cluster: FakeCluster, running: Run) -> None:
    running()
    cluster.kubelet.removes = False
    cluster.store.delete(JOB, NAMESPACE, "digits")  # its pods are still ending

    again = cluster.add(JOB, _copy(cluster, "digits-worker-0"))

    for name in list(cluster.pods("digits")):
        cluster.kubelet.remove(NAMESPACE, name)
    for name in list(cluster.pods("digits", "etcd")):
        cluster.kubelet.remove(NAMESPACE, name)
    cluster.kubelet.removes = True
    wait_until_running(cluster, "digits", 1)
    for pod in cluster.pods("digits").values():
        assert pod["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]


def _copy(cluster: FakeCluster, pod: str) -> dict[str, Any]:
    """A job as the one before, with one pod."""
    container = {"name": "elasticjob-worker", "image": "train", "args": ["train.py"]}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    assert pod in cluster.pods("digits")
    return {
        "metadata": {"name": "digits", "namespace": NAMESPACE},
        "spec": {"minReplicas": 1, "maxReplicas": 1, "replicaSpecs": {"Worker": worker}},
    }
