"""Templates that are misspelt, changed and rolled out, and etcds that do not start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.integration.controller.conftest import (
    NAMESPACE,
    has_warned,
    uids,
    wait_until_running,
)
from tests.kube.kinds import JOB, POD

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Scene
    from tests.kube.cluster import FakeCluster
    from tests.kube.server import Request


def template(image: str = "train", **more: Any) -> dict[str, Any]:
    container = {"name": "elasticjob-worker", "image": image, "args": ["train.py"], **more}
    return {"spec": {"containers": [container]}}


def change(cluster: FakeCluster, new: dict[str, Any]) -> None:
    cluster.edit(JOB, "digits", {"spec": {"replicaSpecs": {"Worker": {"template": new}}}})


def images(cluster: FakeCluster) -> list[str]:
    pods = cluster.pods("digits")
    return [pods[name]["spec"]["containers"][0]["image"] for name in sorted(pods)]


def reasons(cluster: FakeCluster) -> list[str]:
    return [event["reason"] for event in cluster.events("digits")]


# ---------------------------------------------------------------- what is misspelt


def test_a_misspelt_field_is_named_before_anything_is_made(cluster: Scene) -> None:
    with cluster.trouble(checks_pods, 500, "InternalError", "not now", times=2):
        cluster.submit(worker={"template": template(arg=["train.py"])})
        told = cluster.await_condition("digits", "Running", "TemplateRefused")["message"]
    assert "spec.replicaSpecs.Worker.template.spec.containers[0].arg: " in told
    assert 'unknown field "spec.containers[0].arg"' in told
    assert cluster.store.list(POD) == []
    change(cluster, template())
    wait_until_running(cluster, "digits", 2)
    assert reasons(cluster).count("TemplateRefused") == 1


def test_a_job_that_runs_goes_on_beside_a_template_that_is_refused(cluster: Scene) -> None:
    cluster.running()
    change(cluster, template(resource={}))
    cluster.wait_for(lambda: "TemplateRefused" in reasons(cluster), "an event")
    assert cluster.condition("digits", "Running")["status"] == "True"
    cluster.kubelet.lose(NAMESPACE, "digits-etcd")
    cluster.wait_for(lambda: cluster.pods("digits", "etcd"), "its etcd is replaced all the same")


# ---------------------------------------------------------------- what changes


def test_a_template_is_rolled_out_pod_by_pod(cluster: Scene) -> None:
    cluster.running(replicas=3, rollout="Rolling")
    fewest = 3

    def is_done() -> bool:
        nonlocal fewest
        pods = cluster.pods("digits").values()
        there = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        fewest = min(fewest, len(there))
        status = cluster.job("digits")["status"]
        reason = cluster.condition("digits", "Outdated").get("reason")
        return reason == "UpToDate" and status["updatedReplicas"] == 3

    # Each round is one more, as the agents say it; all that run are in it.
    cluster.agents.count_rounds = True
    change(cluster, template("train:2"))
    cluster.wait_for(is_done, "all pods have it")
    assert images(cluster) == ["train:2"] * 3
    assert fewest == 2
    assert cluster.job("digits")["status"]["restartCount"] == 0
    assert reasons(cluster).count("Rolling") == 3


# ---------------------------------------------------------------- an etcd that does not start


def test_an_etcd_without_an_image_is_told_and_mended(cluster: Scene) -> None:
    cluster.kubelet.runs = False
    cluster.submit(etcd={"image": "nowhere/etcd"})
    cluster.wait_for(lambda: cluster.pods("digits", "etcd"), "its etcd")
    cluster.kubelet.wait_for_image(NAMESPACE, "digits-etcd")
    told = cluster.await_condition("digits", "Running", "ImagePullFailed")["message"]
    assert "spec.etcd.image: the image 'nowhere/etcd'" in told
    cluster.kubelet.runs = True
    cluster.edit(JOB, "digits", {"spec": {"etcd": {"image": "good/etcd"}}})
    wait_until_running(cluster, "digits", 2)
    assert cluster.job("digits")["status"]["restartCount"] == 0
    made = [change.item for change in cluster.store.history if change.kind == POD]
    assert not [pod for pod in made if pod["metadata"]["name"].endswith("-worker-check")]


# ---------------------------------------------------------------- the last words


def test_why_a_job_failed_is_what_its_agent_said_last(cluster: Scene) -> None:
    cluster.running(replicas=1)
    words = "there is no script 'trian.py' in '/app'"
    cluster.kubelet.finish(NAMESPACE, "digits-worker-0", 2, message=f"{words}\n")
    assert words in cluster.await_condition("digits", "Failed", "UsageError")["message"]
    has_warned(cluster, words)


def test_the_last_step_is_what_the_agent_said_last(cluster: Scene) -> None:
    job = cluster.running(replicas=1)
    run_id = f"{job['metadata']['uid']}-0"
    report = {"run_id": run_id, "round": 1, "world": 1, "step": 120, "checkpoint_step": 118}
    text = f"training is done\n{json.dumps(report)}\n"
    cluster.kubelet.finish(NAMESPACE, "digits-worker-0", 0, message=text)
    cluster.await_condition("digits", "Succeeded", "Done")
    status = cluster.job("digits")["status"]
    assert status["completionTime"]
    assert (status["step"], status["lastCheckpointStep"]) == (120, 118)


# ---------------------------------------------------------------- answers that are none


def checks_pods(request: Request) -> bool:
    return request.kind == POD and request.query.get("dryRun") == "All"


def test_a_rollout_loses_no_pod_to_what_is_refused_or_forbidden_or_fails(cluster: Scene) -> None:
    def deletes(request: Request) -> bool:
        return request.verb == "delete" and request.kind == POD

    cluster.running(replicas=3, rollout="Rolling")
    before = uids(cluster)
    change(cluster, template(resource={}))
    cluster.await_condition("digits", "Outdated", "TemplateRefused")
    said = 'pods "digits-worker-check" is forbidden: violates PodSecurity "restricted:latest"'
    with cluster.trouble(checks_pods, 403, "Forbidden", said):
        change(cluster, template("train:2"))
        cluster.wait_for(lambda: "Forbidden" in reasons(cluster), "it is told")
        assert uids(cluster) == before
    # It is asked again, and so is for a pod to be deleted.
    cluster.agents.count_rounds = True
    with cluster.trouble(deletes, 500, "InternalError", "not now", times=1):
        cluster.wait_for(lambda: images(cluster) == ["train:2"] * 3, "all pods have it")


def test_what_is_refused_of_etcd_is_not_blamed_on_the_workers(cluster: Scene) -> None:
    def makes_etcd(request: Request) -> bool:
        return creates_no_check(request) and not cluster.pods("digits", "etcd")

    said = 'Pod "digits-etcd" is invalid: spec.containers[0].resources.requests: Invalid value'
    with cluster.trouble(makes_etcd, 422, "Invalid", said):
        cluster.submit(etcd={"template": {"spec": {"terminationGracePeriodSeconds": 1}}})
        told = cluster.await_condition("digits", "Running", "Rejected")["message"]
    assert "spec.etcd.template: the API server refuses what the job asks for" in told
    wait_until_running(cluster, "digits", 2)


def creates_no_check(request: Request) -> bool:
    return request.verb == "create" and request.kind == POD and not checks_pods(request)
