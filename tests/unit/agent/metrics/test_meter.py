"""What an agent says of itself over HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from elastic_runtime.agent.metrics.meter import Meter
from elastic_runtime.agent.metrics.metrics_fold import LoopTurned
from elastic_runtime.events import Event, silent
from elastic_runtime.events.checkpoint_events import CheckpointSaved
from elastic_runtime.events.node_events import MetricsOff
from elastic_runtime.events.round_events import RoundSealed
from elastic_runtime.protocol.round_records import Budget
from tests.unit.agent.jobs import job
from tests.unit.programs import run_python

CONFIG = job()
LOCAL = "127.0.0.1"
PATIENCE = 60.0  # of a test


def connect(port: int) -> socket.socket:
    return socket.create_connection((LOCAL, port), timeout=PATIENCE)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{LOCAL}:{port}{path}", timeout=PATIENCE) as answered:
            return answered.status, answered.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def free_port() -> int:
    with socket.create_server((LOCAL, 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


SEALED = RoundSealed(3, workers=4, nodes=2, restarts=Budget().restarts | {"killed": 1})


def test_what_the_agent_says(free_port: int) -> None:
    events: list[Event] = []
    with Meter(CONFIG.with_(metrics_port=free_port), events.append) as meter:
        assert get(free_port, "/healthz") == (200, "the agent is alive\n")
        assert get(free_port, "/readyz") == (503, "this node is in no round\n")
        meter.emit(SEALED)
        now = time.monotonic()
        meter.watch(LoopTurned(step=12, count=2, moment=now))
        assert get(free_port, "/readyz") == (200, "in round 3\n")
        status, text = get(free_port, "/status")
        said = json.loads(text)
        assert 0 <= said["goodput"] <= 1
        names = said["run_id"], said["node"]
        assert (status, names, said["round"], said["step"]) == (200, ("run", "a"), 3, 12)
        text = get(free_port, "/metrics")[1]
        assert 'elastic_restarts_total{class="killed"} 1.0\n' in text
        assert get(free_port, "/")[0] == 404
        assert "/metrics, /status" in get(free_port, "/nowhere")[1]
    # What is for the measurements alone is in no log.
    assert events == [SEALED]
    with pytest.raises(ConnectionRefusedError):
        connect(free_port)


def test_an_agent_whose_loop_hangs_says_so(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Meter(CONFIG.with_(metrics_port=free_port), silent) as meter:
        meter.watch(LoopTurned(step=-1, count=0, moment=0.0))
        monkeypatch.setattr("elastic_runtime.agent.metrics.metrics_fold.HANGING_AGENT", -1.0)
        hangs = 503, "the agent's main loop has not run for 0 s\n"
        assert get(free_port, "/healthz") == hangs


@pytest.mark.parametrize(
    ("host", "why"),
    [(LOCAL, "Address already in use"), ("192.0.2.7", "Cannot assign requested address")],
)
def test_a_port_that_cannot_be_had_is_a_warning(host: str, why: str) -> None:
    events: list[Event] = []
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        config = CONFIG.with_(metrics_port=port, metrics_host=host)
        with Meter(config, events.append) as meter:
            meter.emit(SEALED)
    assert events == [MetricsOff(f"{host}:{port}", why), SEALED]


def test_a_host_that_is_unknown_is_a_warning(free_port: int) -> None:
    events: list[Event] = []
    config = CONFIG.with_(metrics_port=free_port, metrics_host="no-such-host.invalid")
    with Meter(config, events.append):
        pass
    assert [type(event) for event in events] == [MetricsOff]


def test_events_of_many_threads_are_all_counted(free_port: int) -> None:
    with Meter(CONFIG.with_(metrics_port=free_port), silent) as meter:
        saves = 200

        def save() -> None:
            for _ in range(saves):
                meter.emit(CheckpointSaved("x", step=1, bytes=1, seconds=0.1))

        threads = [threading.Thread(target=save) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        text = get(free_port, "/metrics")[1]
    assert f"elastic_checkpoint_saved_bytes_total {4.0 * saves}\n" in text


def test_without_a_port_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, elastic_runtime.agent.launch, elastic_runtime.cli.run.elastic_run, "
        "elastic_runtime.agent.metrics.metrics_fold\n"
        "bad = {'prometheus_client', 'asyncio', 'elastic_runtime.system.http_server'}\n"
        "bad &= set(sys.modules)\n"
        "assert not bad, bad"
    )
    ended = run_python(code)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_node_that_knows_where_it_is_says_so() -> None:
    with Meter(CONFIG.with_(node_topology=("z", "r")), silent) as meter:
        assert meter.report()["topology"] == "z/r"
    with Meter(CONFIG, silent) as meter:
        assert "topology" not in meter.report()
