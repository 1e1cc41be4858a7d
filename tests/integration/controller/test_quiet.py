"""What the controller does when there is little to do, and what it shows of itself."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from tests import processes
from tests.integration.controller.conftest import NAMESPACE, wait_until_running
from tests.kube.kinds import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.controller.conftest import Running
    from tests.kube.cluster import FakeCluster

    Run = Callable[..., dict[str, Any]]
    Start = Callable[..., Running]

_RENEWAL = "update leases"
_PATIENCE = 60.0


def let_pass(cluster: FakeCluster, renewals: int) -> None:
    """Returns after so many renewals of the Lease: the only thing that goes on by itself."""
    until = cluster.counts()[_RENEWAL] + renewals
    cluster.wait_for(lambda: cluster.counts()[_RENEWAL] >= until, f"{renewals} renewals")


def test_an_idle_controller_asks_nothing(cluster: FakeCluster, start: Start, submit: Run) -> None:
    start("--lease-seconds", "3")
    submit()
    wait_until_running(cluster, "digits", 2)
    let_pass(cluster, 2)

    before = cluster.counts()
    let_pass(cluster, 3)
    assert set(cluster.counts() - before) == {_RENEWAL}


def test_it_shows_its_metrics(cluster: FakeCluster, running: Run, controller: Running) -> None:
    running()

    def shown() -> dict[str, str]:
        code, text = controller.probe("/metrics")
        assert code == 200
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")

    # The API server has the new status a moment before the controller knows that it has.
    running_jobs = 'elastic_controller_jobs{condition="Running"}'
    processes.wait_for(lambda: shown().get(running_jobs) == "1.0", 10, "the job is counted")
    lines = shown()
    assert float(lines["elastic_controller_reconcile_seconds_count"]) > 0
    assert lines["elastic_controller_reconcile_errors_total"] == "0.0"
    assert lines["elastic_controller_leads"] == "1.0"
    assert float(lines['elastic_controller_api_requests_total{code="201",verb="POST"}']) > 0
    assert "elastic_controller_queue_length" in lines
    assert controller.probe("/healthz")[0] == 200
    assert controller.probe("/readyz")[0] == 200


def test_what_is_no_request_leaves_no_traceback(controller: Running) -> None:
    with socket.create_connection(("127.0.0.1", controller.port)) as stranger:
        stranger.settimeout(_PATIENCE)
        stranger.sendall(b"GET / HTTP/9.9\r\n\r\n")
        assert b" 400 " in stranger.recv(4096)
    assert controller.probe("/healthz")[0] == 200
    assert "Traceback" not in controller.log.read_text()


def test_the_status_says_what_agents_say(cluster: FakeCluster, running: Run) -> None:
    cluster.agents.say["digits"] = {
        "round": 3,
        "world": 2,
        "step": 70,
        "checkpoint_step": 64,
        "restarts": {"failed": 1, "killed": 2, "lost": 3, "planned": 4},
    }
    running()

    cluster.wait_for(
        lambda: cluster.job("digits")["status"].get("round") == 3, "the round of the agents"
    )
    status = cluster.job("digits")["status"]
    assert (status["worldSize"], status["step"], status["lastCheckpointStep"]) == (2, 70, 64)
    assert status["restarts"]["killed"] == 2
    assert status["restartCount"] == 6


def test_what_agents_say_later_is_noticed(cluster: FakeCluster, running: Run) -> None:
    running()
    cluster.agents.say["digits"] = {"round": 2, "ready": False}
    cluster.wait_for(
        lambda: cluster.job("digits")["status"].get("round") == 2, "the round of the agents"
    )


def test_what_is_no_agent_does_no_harm(
    cluster: FakeCluster, controller: Running, submit: Run
) -> None:
    cluster.agents.say["digits"] = {"round": float("inf")}
    submit()
    asked = cluster.agents.asked
    processes.wait_for(lambda: asked["digits"] > 2, 20, "the agents are asked", controller.story)

    cluster.kubelet.lose(NAMESPACE, "digits-worker-1")
    cluster.agents.say.clear()
    wait_until_running(cluster, "digits", 2)
    assert "Traceback" not in controller.log.read_text()


def test_the_lease_is_where_the_controller_is(cluster: FakeCluster, running: Run) -> None:
    running()
    (lease,) = cluster.store.list(LEASE)
    assert (lease["metadata"]["namespace"], lease["metadata"]["name"]) == (
        NAMESPACE,
        "elastic-controller",
    )
