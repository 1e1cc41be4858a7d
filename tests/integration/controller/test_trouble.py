"""What goes wrong between the controller and the API server, and what users write wrongly."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.etcd_server import free_port
from tests.integration.controller.conftest import (
    NAMESPACE,
    has_warned,
    replaced,
    wait_until_running,
)
from tests.kube.kinds import JOB, POD, SERVICE

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Scene
    from tests.kube.cluster import FakeCluster
    from tests.kube.server import Request


def creates_pods(request: Request) -> bool:
    return request.verb == "create" and request.kind == POD


def test_what_happened_in_a_gap_is_seen(cluster: Scene) -> None:
    cluster.running()
    cluster.running("next")

    with replaced(cluster, "next-worker-0", "next"), cluster.store.lock:
        cluster.store.delete(JOB, NAMESPACE, "digits")  # nobody is told of that
        cluster.kubelet.lose(NAMESPACE, "next-worker-0")
        cluster.break_watches(forget=True)

    cluster.scale("next", 3)  # who knows of that knows that the other job is gone
    wait_until_running(cluster, "next", 3)
    cluster.wait_for(lambda: not cluster.pods("digits"), "no pods of the job that is gone")
    made = cluster.counts()["create pods"]
    for replicas in (2, 3, 2, 3):  # time goes by
        cluster.scale("next", replicas)
        wait_until_running(cluster, "next", replicas)
    assert not cluster.pods("digits")
    assert cluster.counts()["create pods"] == made + 2


def test_a_quota_is_told_and_tried_again(cluster: Scene) -> None:
    message = (
        'pods "digits-worker-0" is forbidden: exceeded quota: small, requested: pods=1, '
        "used: pods=3, limited: pods=3"
    )
    with cluster.trouble(creates_pods, 403, "Forbidden", message):
        cluster.submit()
        has_warned(cluster, "exceeded quota: small")
        cluster.wait_for(lambda: "exceeded quota" in conditions(cluster), "a condition")
        assert cluster.condition("digits", "Running").get("status") != "True"

    wait_until_running(cluster, "digits", 2)
    assert "exceeded quota" not in conditions(cluster)


def conditions(cluster: FakeCluster) -> str:
    return str((cluster.job("digits").get("status") or {}).get("conditions"))


def test_names_that_something_else_has_are_told_and_left_alone(cluster: Scene) -> None:
    container = {"name": "mine", "image": "other"}
    foreign = {"metadata": {"name": "digits-worker-0"}, "spec": {"containers": [container]}}
    service = {"metadata": {"name": "digits"}, "spec": {"clusterIP": "None"}}
    cluster.store.create(POD, NAMESPACE, foreign)
    theirs = cluster.store.create(SERVICE, NAMESPACE, service)

    cluster.submit()
    has_warned(cluster, '"digits" already exists')
    assert cluster.store.get(SERVICE, NAMESPACE, "digits") == theirs
    cluster.store.delete(SERVICE, NAMESPACE, "digits")

    has_warned(cluster, '"digits-worker-0" already exists')
    cluster.kubelet.lose(NAMESPACE, "digits-worker-0")
    wait_until_running(cluster, "digits", 2)


def test_new_credentials_are_taken_when_the_old_ones_end(cluster: Scene) -> None:
    cluster.running()

    with replaced(cluster, "digits-worker-0"), cluster.store.lock:
        cluster.server.token = "fresh"
        cluster.kubeconfig(cluster.controller.log.parent / "kubeconfig")
        cluster.break_watches()
        cluster.kubelet.lose(NAMESPACE, "digits-worker-0")

    assert "fresh" not in cluster.controller.log.read_text()


def test_a_wrong_spec_is_named_and_harms_nobody(cluster: Scene) -> None:
    cluster.submit("digits", minReplicas=5, maxReplicas=2)
    refused = cluster.await_condition("digits", "Created", "InvalidSpec")
    assert "spec.minReplicas" in refused["message"]
    assert cluster.condition("digits", "Running")["status"] == "False"
    has_warned(cluster, "spec.minReplicas")

    cluster.submit("odd", worker={"template": None})
    cluster.submit("good")
    wait_until_running(cluster, "good", 2)
    assert not cluster.pods("digits")
    assert cluster.controller.process.poll() is None


def test_two_jobs_do_not_share_a_run_id(cluster: Scene) -> None:
    meeting = {"rdzvEndpoint": "etcd.example:2379", "rdzvId": "mine"}
    cluster.submit("first", **meeting)
    wait_until_running(cluster, "first", 2)

    cluster.submit("digits", **meeting)
    has_warned(cluster, f"spec.rdzvId: the job {NAMESPACE}/first")
    assert not cluster.pods("digits")

    with cluster.store.lock:  # nobody is told of that
        cluster.store.delete(JOB, NAMESPACE, "first")
        cluster.break_watches(forget=True)
    wait_until_running(cluster, "digits", 2)


def test_without_the_custom_resource_it_says_so_and_waits(cluster: Scene) -> None:
    cluster.server.catalogue.kinds.remove(JOB)
    controller = cluster.start(ready=False)
    controller.wait_for_log("kubectl apply -f deploy/crd.yaml")
    code, why = controller.probe("/readyz")
    assert (code, "deploy/crd.yaml" in why) == (503, True)

    cluster.server.catalogue.kinds.append(JOB)
    controller.wait_until_ready()
    cluster.submit()
    wait_until_running(cluster, "digits", 2)


def test_a_server_that_does_not_answer_is_waited_for(cluster: Scene) -> None:
    cluster.server.url = cluster.url = f"http://127.0.0.1:{free_port()}"

    controller = cluster.start(ready=False)

    controller.wait_for_log("controller.waiting")
    code, why = controller.probe("/readyz")
    assert code == 503
    assert cluster.url.removeprefix("http://") in why
    assert controller.probe("/healthz")[0] == 200


def test_a_port_that_is_taken_is_named(cluster: Scene) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", port))
        taken.listen()
        controller = cluster.start("--liveness-port", str(port), ready=False)

        assert controller.process.wait(20) == 2
    assert f"port {port} cannot be had" in controller.log.read_text()
    assert "Traceback" not in controller.log.read_text()


def test_one_namespace_is_all_that_it_looks_at(cluster: Scene) -> None:
    def is_elsewhere(request: Request) -> bool:
        return request.namespace != NAMESPACE

    with cluster.trouble(is_elsewhere, 403, "Forbidden", "only in one namespace"):
        cluster.start("--namespace", NAMESPACE)
        cluster.submit("elsewhere", namespace="elastic-job")
        cluster.running()
    assert not cluster.pods("elsewhere")
