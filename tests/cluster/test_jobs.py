"""ElasticJobs in a cluster, from the installation to the last pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.cluster import Cluster, Job

    Submit = Callable[..., Job]

pytestmark = [
    pytest.mark.timeout(600),
    # Somebody's kubeconfig may say insecure-skip-tls-verify.
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),
]

FOREVER = ("--epochs", "100000")


def test_digits_are_learned_to_the_end(submit: Submit) -> None:
    job = submit("learns", "--epochs", "2", "--step-ms", "0", replicas=2)
    condition = job.await_condition("Succeeded")
    status = job.status
    assert condition["reason"] and condition["message"]
    assert job.is_("Created") and not job.is_("Running") and not job.is_("Failed")
    assert status["startTime"] <= status["completionTime"]
    assert status["observedGeneration"] == job.read()["metadata"]["generation"]
    assert status["replicaStatuses"]["Worker"]["succeeded"] == 2
    assert status["restartCount"] == 0
    assert any("test accuracy" in job.cluster.log(pod) for pod in job.pods())


def test_killed_pods_are_replaced_and_training_goes_on(submit: Submit) -> None:
    job = submit("survives", *FOREVER, replicas=2)
    status = job.await_world(2)
    saved = job.await_save(after=0)
    for victim, other in (("worker-0", "worker-1"), ("worker-1", "worker-0")):
        before = job.uids()
        job.cluster.delete_pod(f"survives-{victim}", grace=0)
        job.await_another(f"survives-{victim}", before[f"survives-{victim}"])
        status = job.await_world(2, after=status["round"])
        saved = job.await_save(after=saved)
        assert job.uids()[f"survives-{other}"] == before[f"survives-{other}"]
    # A kubelet gives a pod that is deleted with no grace a second: it may say goodbye or not.
    restarts = job.status["restarts"]
    assert restarts["lost"] <= 2 and restarts["failed"] == restarts["killed"] == 0
    assert job.is_("Running") and not job.is_("Failed")


def test_a_job_survives_its_only_pod(submit: Submit) -> None:
    job = submit("lonely", *FOREVER, replicas=1)
    status = job.await_world(1)
    saved = job.await_save(after=0)
    before = job.uids()["lonely-worker-0"]
    job.cluster.delete_pod("lonely-worker-0", grace=0)
    job.await_another("lonely-worker-0", before)
    job.await_world(1, after=status["round"])
    job.await_save(after=saved)


def test_sizes_change_and_pods_are_preempted_and_no_step_is_lost(submit: Submit) -> None:
    job = submit("grows", *FOREVER, replicas=1)
    job.await_world(1)
    first = job.uids()
    saved = job.await_save(after=0)
    job.scale(3)
    job.await_world(3)
    saved = job.await_save(after=saved)
    job.scale(2)
    status = job.await_world(2)
    before = job.uids()
    assert before.keys() == {"grows-worker-0", "grows-worker-1"}
    assert before["grows-worker-0"] == first["grows-worker-0"]
    saved = job.await_save(after=saved)
    job.cluster.delete_pod("grows-worker-0", grace=25)
    job.await_another("grows-worker-0", before["grows-worker-0"])
    status = job.await_world(2, after=status["round"])
    assert job.uids()["grows-worker-1"] == before["grows-worker-1"]
    assert status["restartCount"] == 0
    job.await_save(after=saved)


def test_a_suspended_job_goes_on_from_its_checkpoint(submit: Submit) -> None:
    job = submit("pauses", *FOREVER, replicas=2)
    job.await_world(2)
    saved = job.await_save(after=0)
    job.change({"suspend": True})
    job.await_condition("Suspended")
    job.cluster.wait_for(lambda: not job.pods(), "no pod is left")
    assert not job.is_("Running") and not job.is_("Failed")
    job.change({"suspend": False})
    assert job.await_words("resumed at step ") >= saved
    job.await_world(2)
    assert job.is_("Running") and not job.is_("Suspended")


def test_a_script_that_fails_fails_the_job(submit: Submit) -> None:
    command = ("--max-restarts", "0", "--no-python", "/bin/sh", "-c", "echo no luck; exit 1")
    job = submit("fails", command=command, replicas=2)
    condition = job.await_condition("Failed")
    assert condition["reason"] and "exit code 1" in condition["message"]
    assert not job.is_("Running") and not job.is_("Succeeded")
    assert job.status["completionTime"]


def test_jobs_do_without_a_controller_and_are_taken_up_again(
    submit: Submit, cluster: Cluster
) -> None:
    job = submit("alone", *FOREVER, replicas=2)
    status = job.await_world(2)
    saved = job.await_save(after=0)
    before = job.uids()
    for pod in cluster.pods(namespace=cluster.home):
        cluster.delete_pod(pod["metadata"]["name"], 0, cluster.home)
    cluster.delete_pod("alone-worker-1", grace=0)
    saved = job.await_save(after=saved)
    job.await_another("alone-worker-1", before["alone-worker-1"])
    job.await_world(2, after=status["round"])
    assert job.uids()["alone-worker-0"] == before["alone-worker-0"]
    job.await_save(after=saved)


def test_a_deleted_job_leaves_nothing(submit: Submit) -> None:
    job = submit("goes", command=("--no-python", "/bin/sleep", "100000"), replicas=2)
    job.await_world(2)
    kinds = {one.partition("/")[0] for one in job.everything()}
    assert kinds == {"Pod", "Service", "PodDisruptionBudget"}
    job.delete()
    job.cluster.wait_for(lambda: not job.everything(), "nothing is left")


def test_an_etcd_that_cannot_be_pulled_is_told_costs_no_worker_and_can_be_mended(
    submit: Submit, cluster: Cluster
) -> None:
    nowhere = "nowhere.invalid/etcd:none"
    job = submit("waits", *FOREVER, replicas=2, etcd={"image": nowhere})
    cluster.wait_for(
        lambda: job.condition("Running").get("reason") == "ImagePullFailed", "it is told", 180
    )
    told = job.condition("Running")["message"]
    assert f"spec.etcd.image: the image '{nowhere}' of the job's etcd" in told
    assert job.pods() == {}
    job.change({"etcd": {"image": cluster.image}})
    job.await_world(2)
    status = job.status
    assert status["restartCount"] == 0
    assert job.is_("Running")


def test_a_drained_node_loses_its_workers_before_etcd_and_training_goes_on(
    submit: Submit, cluster: Cluster
) -> None:
    if len(cluster.nodes()) < 2:
        pytest.skip("a node is drained where there are two")
    job = submit("drains", *FOREVER, replicas=3)
    job.await_world(3)
    node, there = _etcd_and_its_neighbours(cluster, "drains")
    if len(there) < 2:
        pytest.skip("no worker came to the node of etcd")
    job.await_save(after=0)
    before = job.uids()
    cluster.cordon(node)
    try:
        order = cluster.drain(there)
        assert order[-1] == "drains-etcd"
        status = job.await_world(3)  # all workers and an etcd, on the other nodes
        job.await_save(after=job.saved())
    finally:
        cluster.cordon(node, closed=False)
    evicted = {pod["metadata"]["name"] for pod in there}
    kept = {name: uid for name, uid in before.items() if name not in evicted}
    assert kept.items() <= job.uids().items()
    assert kept
    assert (status["restarts"]["failed"], status["restarts"]["killed"]) == (0, 0)


def _etcd_and_its_neighbours(cluster: Cluster, job: str) -> tuple[str, list[dict[str, Any]]]:
    """The node of a job's etcd, and the job's pods that are there."""
    pods = cluster.pods(f"job-name={job}")
    node = next(p["spec"]["nodeName"] for p in pods if p["metadata"]["name"] == f"{job}-etcd")
    return node, [pod for pod in pods if pod["spec"].get("nodeName") == node]


def test_a_changed_template_is_rolled_out_without_a_step_lost(
    submit: Submit, cluster: Cluster
) -> None:
    job = submit("rolls", *FOREVER, replicas=2, rollout="Rolling")
    status = job.await_world(2)
    saved = job.await_save(after=0)
    before = job.uids()
    template = job.read()["spec"]["replicaSpecs"]["Worker"]["template"]
    template["metadata"] = {"labels": {"release": "2"}}
    job.change({"replicaSpecs": {"Worker": {"template": template}}})
    cluster.wait_for(
        lambda: job.condition("Outdated").get("reason") == "UpToDate", "all have it", 300
    )
    pods = job.pods()
    assert [pod["metadata"]["labels"].get("release") for pod in pods.values()] == ["2", "2"]
    assert not set(job.uids().values()) & set(before.values())
    status = job.await_world(2, after=status["round"])
    assert status["restartCount"] == 0
    job.await_save(after=saved)


def test_why_a_job_failed_is_in_its_conditions(submit: Submit) -> None:
    job = submit("wrong", command=("nosuch.py",), replicas=1)
    told = job.await_condition("Failed")
    assert told["reason"] == "UsageError"
    assert "there is no script 'nosuch.py'" in told["message"]


def test_a_misspelt_field_of_the_template_is_named(submit: Submit, cluster: Cluster) -> None:
    job = submit("typo", replicas=1, template={"nodeSelectr": {}})
    cluster.wait_for(
        lambda: job.condition("Running").get("reason") == "TemplateRefused", "it is refused"
    )
    told = job.condition("Running")["message"]
    assert "spec.replicaSpecs.Worker.template.spec.nodeSelectr: " in told
    assert job.pods() == {}
