"""What a decision sees of objects as the API server has them."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller import views
from elastic_runtime.controller.decide.job_types import EtcdView, PodView

_OWNER = {"kind": "ElasticJob", "name": "digits", "uid": "job-1", "controller": True}


def pod(*, component: str = "worker", **status: Any) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/component": component,
        "replica-index": "3",
        "elastic.pytorch.org/attempt": "2",
    }
    meta = {"name": "digits-worker-3", "namespace": "default", "uid": "pod-1", "labels": labels}
    meta |= {"creationTimestamp": "1970-01-01T00:01:40Z", "ownerReferences": [_OWNER]}
    containers = [{"name": name} for name in ("sidecar", "elasticjob-worker")]
    return {"metadata": meta, "spec": {"containers": containers}, "status": status}


def container(name: str = "elasticjob-worker", **state: Any) -> dict[str, Any]:
    return {"name": name, "restartCount": 0, "state": state}


ENDED = {"startedAt": "1970-01-01T00:02:00Z", "finishedAt": "1970-01-01T00:03:00Z"}


def view(item: dict[str, Any]) -> PodView:
    found = views.pod_view(item)
    assert isinstance(found, PodView)
    return found


def test_a_pod_that_was_just_created() -> None:
    assert view(pod()) == PodView(
        "digits-worker-3", 3, "pod-1", attempt=2, phase="Pending", created_at=100.0
    )


def test_a_pod_that_runs() -> None:
    containers = [
        container("sidecar", terminated={"exitCode": 9}),
        container(running={"startedAt": "1970-01-01T00:02:00Z"}),
    ]
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": "10.1.2.3", "conditions": ready}
    item = pod(**status, containerStatuses=containers)
    found = view(item)
    assert (found.phase, found.ready, found.address) == ("Running", True, "10.1.2.3")
    assert (found.started_at, found.exit_code, found.deleting) == (120.0, None, False)
    item["metadata"]["deletionTimestamp"] = "1970-01-01T00:01:40Z"
    assert view(item).deleting


def test_the_end_of_the_worker_is_the_end_that_counts() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "too much", **ENDED}
    containers = [container("sidecar", terminated={"exitCode": 0}), container(terminated=ended)]
    found = view(pod(phase="Failed", containerStatuses=containers))
    assert (found.exit_code, found.reason, found.message) == (137, "OOMKilled", "too much")
    assert (found.started_at, found.finished_at) == (120.0, 180.0)


@pytest.mark.parametrize("word", ["Error", "Completed"])
def test_words_that_every_end_has_are_no_reason(word: str) -> None:
    ended = {"exitCode": 1, "reason": word}
    assert view(pod(containerStatuses=[container(terminated=ended)])).reason == ""


def test_what_the_cluster_did_says_more_than_how_it_was_taken() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    target["message"] = "for a more important pod"
    ended = [container(terminated={"exitCode": 143, "reason": "Error"})]
    assert view(pod(phase="Failed", reason="Evicted", containerStatuses=ended)).reason == "Evicted"
    found = view(pod(phase="Failed", conditions=[target], containerStatuses=ended))
    assert (found.reason, found.message) == ("PreemptionByScheduler", "for a more important pod")


def test_a_pod_without_a_place() -> None:
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert view(pod(conditions=[{**placed, "message": "no GPU"}])).unschedulable == "no GPU"
    assert view(pod(conditions=[{**placed, "reason": "SchedulingGated"}])).unschedulable == ""


def test_who_waits_says_why() -> None:
    waits = {"reason": "ImagePullBackOff", "message": "not found"}
    found = view(pod(containerStatuses=[container(waiting=waits)]))
    assert (found.waiting_reason, found.waiting_message) == ("ImagePullBackOff", "not found")
    # Who waits for another container says why that one waits.
    fetches = [container("fetch", waiting={"reason": "ErrImagePull"})]
    waits = [container(waiting={"reason": "PodInitializing"})]
    found = view(pod(initContainerStatuses=fetches, containerStatuses=waits))
    assert found.waiting_reason == "ErrImagePull"


def test_etcd_is_told_from_workers() -> None:
    found = views.pod_view(pod(component="etcd", phase="Running"))
    assert isinstance(found, EtcdView)
    assert found.phase == "Running"


def test_only_jobs_own() -> None:
    assert views.owner(pod()) == (("default", "digits"), "job-1")
    orphan = pod()
    orphan["metadata"]["ownerReferences"] = [{**_OWNER, "kind": "ReplicaSet"}]
    assert views.owner(orphan) is None


def test_a_pod_that_waits_to_be_told_where_it_is_says_so() -> None:
    item = pod()
    assert view(item).topology is None
    for value in ("", "z/r"):
        item["metadata"]["annotations"] = {"elastic.pytorch.org/topology": value}
        assert view(item).topology == value
