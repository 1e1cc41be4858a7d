"""What the controller shows of itself, and what agents say to it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests import processes
from tests.integration.controller.conftest import NAMESPACE, wait_until_running

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Scene

_PATIENCE = 60.0


def test_it_shows_its_metrics(cluster: Scene) -> None:
    cluster.running()

    def shown() -> dict[str, str]:
        code, text = cluster.controller.probe("/metrics")
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
    assert cluster.controller.probe("/healthz")[0] == 200
    assert cluster.controller.probe("/readyz")[0] == 200
    # What is no request leaves no traceback.
    with socket.create_connection(("127.0.0.1", cluster.controller.port)) as stranger:
        stranger.settimeout(_PATIENCE)
        stranger.sendall(b"GET / HTTP/9.9\r\n\r\n")
        assert b" 400 " in stranger.recv(4096)
    assert cluster.controller.probe("/healthz")[0] == 200
    assert "Traceback" not in cluster.controller.log.read_text()


def test_the_status_says_what_agents_say_at_first_and_later(cluster: Scene) -> None:
    cluster.agents.say["digits"] = {
        "round": 3,
        "world": 2,
        "restarts": {"failed": 1, "killed": 2, "lost": 3, "planned": 4},
    }
    cluster.running()
    cluster.wait_for(lambda: cluster.job("digits")["status"].get("round") == 3, "the round")
    status = cluster.job("digits")["status"]
    assert (status["worldSize"], status["restarts"]["killed"]) == (2, 2)
    assert status["restartCount"] == 6

    cluster.agents.say["digits"] |= {"step": 3, "checkpoint_step": 2}
    cluster.wait_for(
        lambda: cluster.job("digits")["status"].get("step") == 3, "its first step", patience=15
    )
    assert cluster.job("digits")["status"]["lastCheckpointStep"] == 2
    cluster.agents.say["digits"] = {"round": 4, "ready": False}
    cluster.wait_for(lambda: cluster.job("digits")["status"]["round"] == 4, "the next round")


def test_what_is_no_agent_does_no_harm(cluster: Scene) -> None:
    cluster.agents.say["digits"] = {"round": float("inf")}
    cluster.submit()
    asked = cluster.agents.asked
    processes.wait_for(
        lambda: asked["digits"] > 2, 20, "the agents are asked", cluster.controller.story
    )

    cluster.kubelet.lose(NAMESPACE, "digits-worker-1")
    cluster.agents.say.clear()
    wait_until_running(cluster, "digits", 2)
    assert "Traceback" not in cluster.controller.log.read_text()
