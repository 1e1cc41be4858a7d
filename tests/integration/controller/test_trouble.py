"""What goes wrong between the controller and the API server, and what users write wrongly."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from tests import processes
from tests.etcd_server import free_port
from tests.integration.controller.conftest import NAMESPACE, wait_until_running
from tests.kube.kinds import JOB, POD, SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.controller.conftest import Running
    from tests.kube.cluster import FakeCluster
    from tests.kube.server import Request

    Run = Callable[..., dict[str, Any]]
    Start = Callable[..., Running]


def creates_pods(request: Request) -> bool:
    return request.verb == "create" and request.kind == POD


def writes_status(request: Request) -> bool:
    return request.verb == "patch" and request.kind == JOB and request.sub == "status"


def other(cluster: FakeCluster, name: str, before: str) -> Callable[[], bool]:
    """Whether there is a pod of this name that is not the one before."""

    def found() -> bool:
        pod = cluster.pods("digits").get(name)
        return pod is not None and pod["metadata"]["uid"] != before

    return found


def uid(cluster: FakeCluster, name: str) -> str:
    return str(cluster.pods("digits")[name]["metadata"]["uid"])


def test_broken_watches_go_on(cluster: FakeCluster, running: Run) -> None:
    running()
    watches = cluster.counts()["watch pods"]
    before = uid(cluster, "digits-worker-0")

    with cluster.store.lock:
        cluster.break_watches()
        cluster.kubelet.lose(NAMESPACE, "digits-worker-0")

    cluster.wait_for(other(cluster, "digits-worker-0", before), "a new pod")
    # What a new list shows is dealt with at once, perhaps before the watch that follows it begins.
    again = "a further watch"
    processes.wait_for(lambda: cluster.counts()["watch pods"] > watches, 60.0, again, cluster.story)


def test_what_happened_in_a_gap_is_seen(cluster: FakeCluster, running: Run) -> None:
    running()
    lists = cluster.counts()["list pods"]
    before = uid(cluster, "digits-worker-0")

    with cluster.store.lock:  # nobody is told of the deletion
        cluster.kubelet.lose(NAMESPACE, "digits-worker-0")
        cluster.break_watches(forget=True)

    cluster.wait_for(other(cluster, "digits-worker-0", before), "a new pod")
    assert cluster.counts()["list pods"] > lists


def test_a_watch_of_jobs_that_is_too_old_lists_anew(
    cluster: FakeCluster, running: Run, controller: Running
) -> None:
    running()
    lists = cluster.counts()["list elasticjobs"]

    def watches_jobs(request: Request) -> bool:
        return request.kind == JOB and request.verb == "watch"

    with cluster.trouble(watches_jobs, 410, "Expired", "not from there", times=1):
        cluster.break_watches()
        again = "another list"
        processes.wait_for(
            lambda: cluster.counts()["list elasticjobs"] > lists, 60.0, again, cluster.story
        )

    cluster.edit(JOB, "digits", {"spec": {"replicaSpecs": {"Worker": {"replicas": 3}}}})
    wait_until_running(cluster, "digits", 3)
    assert "Traceback" not in controller.log.read_text()


def test_a_job_that_went_in_a_gap_gets_no_pods_any_more(
    cluster: FakeCluster, running: Run, submit: Run
) -> None:
    running()

    with cluster.store.lock:
        cluster.store.delete(JOB, NAMESPACE, "digits")
        cluster.break_watches(forget=True)

    submit("next")
    wait_until_running(cluster, "next", 2)
    cluster.wait_for(lambda: not cluster.pods("digits"), "no pods of the job that is gone")
    made = cluster.counts()["create pods"]
    for replicas in (3, 2, 3):  # time goes by
        worker = {"replicaSpecs": {"Worker": {"replicas": replicas}}}
        cluster.edit(JOB, "next", {"spec": worker})
        wait_until_running(cluster, "next", replicas)
    assert not cluster.pods("digits")
    assert cluster.counts()["create pods"] == made + 2


def test_a_quota_is_told_and_tried_again(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    message = (
        'pods "digits-worker-0" is forbidden: exceeded quota: small, requested: pods=1, '
        "used: pods=3, limited: pods=3"
    )
    with cluster.trouble(creates_pods, 403, "Forbidden", message):
        submit()
        cluster.wait_for(
            lambda: any("exceeded quota: small" in one["message"] for one in told(cluster)),
            "an event that names the quota",
        )
        cluster.wait_for(lambda: "exceeded quota" in str(conditions(cluster)), "a condition")
        assert cluster.condition("digits", "Running").get("status") != "True"

    wait_until_running(cluster, "digits", 2)
    assert "exceeded quota" not in str(conditions(cluster))


def told(cluster: FakeCluster) -> list[dict[str, Any]]:
    return [one for one in cluster.events("digits") if one["type"] == "Warning"]


def conditions(cluster: FakeCluster) -> Any:
    return (cluster.job("digits").get("status") or {}).get("conditions")


def test_a_name_that_something_else_has_is_told(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    container = {"name": "mine", "image": "other"}
    foreign = {"metadata": {"name": "digits-worker-0"}, "spec": {"containers": [container]}}
    cluster.store.create(POD, NAMESPACE, foreign)

    submit()
    cluster.wait_for(
        lambda: any('"digits-worker-0" already exists' in one["message"] for one in told(cluster)),
        "an event that names the pod",
    )

    cluster.kubelet.lose(NAMESPACE, "digits-worker-0")
    wait_until_running(cluster, "digits", 2)


def test_a_service_of_somebody_elses_is_left_alone(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    theirs = cluster.store.create(
        SERVICE, NAMESPACE, {"metadata": {"name": "digits"}, "spec": {"clusterIP": "None"}}
    )

    submit()
    cluster.wait_for(
        lambda: any('"digits" already exists' in one["message"] for one in told(cluster)),
        "an event that names the Service",
    )
    assert cluster.store.get(SERVICE, NAMESPACE, "digits") == theirs

    cluster.store.delete(SERVICE, NAMESPACE, "digits")
    wait_until_running(cluster, "digits", 2)


def test_a_conflict_is_looked_at_again(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    with cluster.trouble(writes_status, 409, "Conflict", "modified", times=3):
        submit()
        wait_until_running(cluster, "digits", 2)


def test_a_server_in_trouble_is_asked_again(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    with cluster.trouble(
        lambda request: request.kind in (POD, JOB) and request.verb in ("create", "patch"),
        500,
        "InternalError",
        "etcdserver: leader changed",
        times=5,
    ):
        submit()
        wait_until_running(cluster, "digits", 2)


def test_new_credentials_are_taken_when_the_old_ones_end(
    cluster: FakeCluster, running: Run, controller: Running
) -> None:
    running()
    before = uid(cluster, "digits-worker-0")

    with cluster.store.lock:
        cluster.server.token = "fresh"
        cluster.kubeconfig(controller.log.parent / "kubeconfig")
        cluster.break_watches()
        cluster.kubelet.lose(NAMESPACE, "digits-worker-0")

    cluster.wait_for(other(cluster, "digits-worker-0", before), "a new pod")
    assert "fresh" not in controller.log.read_text()


def test_a_wrong_spec_is_named_and_harms_nobody(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    submit("digits", minReplicas=5, maxReplicas=2)
    cluster.wait_for(
        lambda: cluster.condition("digits", "Created").get("reason") == "InvalidSpec", "a condition"
    )
    assert "spec.minReplicas" in cluster.condition("digits", "Created")["message"]
    assert cluster.condition("digits", "Running")["status"] == "False"
    cluster.wait_for(lambda: told(cluster), "an event")

    submit("odd", worker={"template": None})
    submit("good")
    wait_until_running(cluster, "good", 2)
    assert not cluster.pods("digits")
    assert controller.process.poll() is None


def test_two_jobs_do_not_share_a_run_id(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    meeting = {"rdzvEndpoint": "etcd.example:2379", "rdzvId": "mine"}
    submit("first", **meeting)
    wait_until_running(cluster, "first", 2)

    submit("digits", **meeting)
    cluster.wait_for(
        lambda: any("spec.rdzvId" in one["message"] for one in told(cluster)), "an event"
    )
    assert "first" in "".join(one["message"] for one in told(cluster))
    assert not cluster.pods("digits")

    cluster.store.delete(JOB, NAMESPACE, "first")
    wait_until_running(cluster, "digits", 2)


def test_a_job_that_went_in_a_gap_is_in_nobodys_way(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    meeting = {"rdzvEndpoint": "etcd.example:2379", "rdzvId": "mine"}
    submit("first", suspend=True, **meeting)
    cluster.wait_for(lambda: cluster.condition("first", "Suspended"), "the first is suspended")
    watches = cluster.counts()["watch elasticjobs"]
    with cluster.store.lock:
        cluster.store.delete(JOB, NAMESPACE, "first")
        cluster.break_watches(forget=True)
    cluster.wait_for(lambda: cluster.counts()["watch elasticjobs"] > watches, "another watch")

    submit("second", **meeting)
    wait_until_running(cluster, "second", 2)


def test_without_the_custom_resource_it_says_so_and_waits(
    cluster: FakeCluster, start: Start, submit: Run
) -> None:
    cluster.server.catalogue.kinds.remove(JOB)
    controller = start(ready=False)
    controller.wait_for_log("kubectl apply -f deploy/crd.yaml")
    code, why = controller.probe("/readyz")
    assert (code, "deploy/crd.yaml" in why) == (503, True)

    cluster.server.catalogue.kinds.append(JOB)
    controller.wait_until_ready()
    submit()
    wait_until_running(cluster, "digits", 2)


def test_a_server_that_does_not_answer_is_waited_for(cluster: FakeCluster, start: Start) -> None:
    cluster.server.url = cluster.url = f"http://127.0.0.1:{free_port()}"

    controller = start(ready=False)

    controller.wait_for_log("controller.waiting")
    code, why = controller.probe("/readyz")
    assert code == 503
    assert cluster.url.removeprefix("http://") in why
    assert controller.probe("/healthz")[0] == 200


def test_a_port_that_is_taken_is_named(start: Start) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", port))
        taken.listen()
        controller = start("--liveness-port", str(port), ready=False)

        assert controller.process.wait(20) == 2
    assert f"port {port} cannot be had" in controller.log.read_text()
    assert "Traceback" not in controller.log.read_text()


def test_one_namespace_is_all_that_it_looks_at(
    cluster: FakeCluster, start: Start, submit: Run
) -> None:
    def is_elsewhere(request: Request) -> bool:
        return request.namespace != NAMESPACE

    with cluster.trouble(is_elsewhere, 403, "Forbidden", "only in one namespace"):
        start("--namespace", NAMESPACE)
        submit("elsewhere", namespace="elastic-job")
        submit()
        wait_until_running(cluster, "digits", 2)
    assert not cluster.pods("elsewhere")
