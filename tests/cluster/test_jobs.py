"""ElasticJobs in a cluster, from the installation to the last pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.cluster import Cluster, Job

    Submit = Callable[..., Job]

pytestmark = pytest.mark.timeout(600)


def test_digits_are_learned_to_the_end(submit: Submit) -> None:
    job = submit("learns", "--epochs", "2", "--step-ms", "0", replicas=2)
    condition = job.await_condition("Succeeded")
    status = job.status
    assert condition["reason"] and condition["message"]
    assert job.is_("Created") and not job.is_("Running") and not job.is_("Failed")
    assert status["startTime"] <= status["completionTime"]
    assert status["observedGeneration"] == job.read()["metadata"]["generation"]
    assert status["replicaStatuses"]["Worker"]["succeeded"] >= 1
    assert status["restartCount"] == 0
    assert any("test accuracy" in job.cluster.log(pod) for pod in job.pods())


def test_killed_pods_are_replaced_and_training_goes_on(submit: Submit) -> None:
    job = submit("survives", "--epochs", "100000", replicas=2)
    job.await_world(2)
    job.await_steps()
    for victim in ("survives-worker-0", "survives-worker-1"):
        before = job.uids()
        saved = job.saved()
        job.cluster.delete_pod(victim, grace=0)
        job.cluster.wait_for(
            lambda before=before, victim=victim: (
                job.uids().get(victim) not in (None, before[victim])
            ),
            f"{victim} is replaced",
        )
        job.await_world(2)
        job.cluster.wait_for(lambda saved=saved: job.saved() > saved, "it goes on")
        others = before.keys() - {victim}
        assert all(job.uids()[name] == before[name] for name in others)
    job.cluster.wait_for(lambda: job.status.get("restarts", {}).get("lost"), "it counts the losses")
    assert job.status["restarts"]["failed"] == 0
    assert job.is_("Running") and not job.is_("Failed")


def test_the_size_changes_while_it_trains(submit: Submit) -> None:
    job = submit("grows", "--epochs", "100000", replicas=1)
    job.await_world(1)
    job.await_steps()
    first = job.uids()
    job.scale(3)
    job.await_world(3)
    saved = job.await_steps()
    job.scale(2)
    job.await_world(2)
    assert job.uids().keys() == {"grows-worker-0", "grows-worker-1"}
    assert job.uids()["grows-worker-0"] == first["grows-worker-0"]
    job.cluster.wait_for(lambda: job.saved() > saved, "it goes on")
    restarts = job.status["restarts"]
    assert restarts["failed"] == restarts["killed"] == restarts["lost"] == 0


def test_a_preempted_pod_leaves_in_order_and_is_replaced(submit: Submit) -> None:
    job = submit("moves", "--epochs", "100000", replicas=2)
    job.await_world(2)
    job.await_steps()
    before = job.uids()
    job.cluster.delete_pod("moves-worker-0", grace=25)
    job.cluster.wait_for(
        lambda: job.uids().get("moves-worker-0") not in (None, before["moves-worker-0"]),
        "the pod is replaced",
    )
    job.await_world(2)
    restarts = job.status["restarts"]
    assert restarts["failed"] == restarts["killed"] == restarts["lost"] == 0
    assert job.uids()["moves-worker-1"] == before["moves-worker-1"]
    assert not job.is_("Failed")


def test_a_suspended_job_goes_on_from_its_checkpoint(submit: Submit) -> None:
    job = submit("pauses", "--epochs", "100000", replicas=2)
    job.await_world(2)
    saved = job.await_steps()
    job.change({"suspend": True})
    job.await_condition("Suspended")
    job.cluster.wait_for(lambda: not job.pods(), "no pod is left")
    assert not job.is_("Running")
    job.change({"suspend": False})
    job.await_world(2)
    resumed = lambda: [  # noqa: E731
        line
        for pod in job.pods()
        for line in job.cluster.log(pod).splitlines()
        if "resumed at step" in line
    ]
    line = job.cluster.wait_for(resumed, "it says where it goes on")[0]
    assert int(line.split("resumed at step ")[1].split(",")[0]) >= saved
    assert job.is_("Running") and not job.is_("Suspended")


def test_a_script_that_fails_fails_the_job(submit: Submit) -> None:
    command = ["--max-restarts", "0", "--no-python", "/bin/sh", "-c", "echo no luck; exit 1"]
    job = submit("fails", command=command, replicas=2)
    condition = job.await_condition("Failed")
    assert "exit code 1" in condition["message"] or "code 1" in condition["message"]
    assert condition["reason"]
    assert not job.is_("Running") and not job.is_("Succeeded")
    assert job.status["completionTime"]


def test_jobs_do_without_a_controller_and_are_taken_up_again(
    submit: Submit, cluster: Cluster
) -> None:
    job = submit("alone", "--epochs", "100000", replicas=2)
    job.await_world(2)
    before, controllers = job.uids(), {p["metadata"]["uid"] for p in cluster.pods("", cluster.home)}
    for pod in cluster.pods(namespace=cluster.home):
        cluster.delete_pod(pod["metadata"]["name"], 0, cluster.home)
    job.await_steps()
    assert job.uids() == before
    cluster.delete_pod("alone-worker-1", grace=0)
    cluster.wait_for(
        lambda: job.uids().get("alone-worker-1") not in (None, before["alone-worker-1"]),
        "the new controller replaces the pod",
    )
    job.await_world(2)
    assert job.uids()["alone-worker-0"] == before["alone-worker-0"]
    assert controllers.isdisjoint(p["metadata"]["uid"] for p in cluster.pods("", cluster.home))


def test_a_deleted_job_leaves_nothing(submit: Submit) -> None:
    job = submit("goes", "--epochs", "100000", replicas=2)
    job.await_world(2)
    kinds = {one.partition("/")[0] for one in job.everything()}
    assert kinds == {"Pod", "Service", "PodDisruptionBudget"}
    job.delete()
    job.cluster.wait_for(lambda: not job.everything(), "nothing is left")
