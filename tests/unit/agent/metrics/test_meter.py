"""What an agent says of itself over HTTP, and what it tells people of its job."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_state import AgentState, LifecycleSettings, Phase
from elastic_runtime.agent.metrics.job_reporter import JobReporter
from elastic_runtime.agent.metrics.meter import Meter
from elastic_runtime.agent.metrics.metrics_fold import LoopTurned
from elastic_runtime.events import Event, silent
from elastic_runtime.events.checkpoint_events import CheckpointSaved
from elastic_runtime.events.job_events import Hint
from elastic_runtime.events.node_events import MetricsOff, NodeLeaving
from elastic_runtime.events.round_events import RoundRecovered, RoundSealed
from elastic_runtime.protocol.messages import Note
from elastic_runtime.protocol.round_records import Budget
from tests.unit.agent.jobs import ROUND, job
from tests.unit.clients import LOCAL, connect, get
from tests.unit.programs import python

if TYPE_CHECKING:
    from elastic_runtime.events import Event
    from elastic_runtime.protocol.records import EventRecord


CONFIG = job()


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

        with ThreadPoolExecutor(4) as pool:
            for saving in [pool.submit(save) for _ in range(4)]:
                saving.result()
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
    ended = python("-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_node_that_knows_where_it_is_says_so() -> None:
    with Meter(CONFIG.with_(node_topology=("z", "r")), silent) as meter:
        assert meter.report()["topology"] == "z/r"
    with Meter(CONFIG, silent) as meter:
        assert "topology" not in meter.report()


# What an agent tells people of its job, and what of it is kept in the store


class Told:
    """A reporter of one node, what it has emitted, and what it has kept."""

    def __init__(self, node: str = "a") -> None:
        self.events: list[Event] = []
        self.kept: list[tuple[str, EventRecord]] = []
        self.state = AgentState(
            LifecycleSettings(1), Phase.RUNNING, round=ROUND, group_rank=ROUND.rank_of(node)
        )
        self.reporter = JobReporter(
            job(node_name=node, max_nodes=2, max_restarts=0),
            lambda event, /, **fields: self.events.append(event),  # type: ignore[arg-type]
            None,
            keep=lambda key, record: self.kept.append((key, record)),
            node=lambda: node,
            state=lambda: self.state,
            progress=lambda: (7, 7, 0.0),
        )


def test_what_holds_for_the_whole_job_is_kept_by_its_first_node_only() -> None:
    first, second = Told("a"), Told("b")
    for told in (first, second):
        told.reporter.tell(SEALED)
        told.reporter.tell(NodeLeaving("asked to"))
        assert told.events == [SEALED, NodeLeaving("asked to")], "all of them emit it"
    assert [record.name for _, record in first.kept] == ["round.sealed", "node.leaving"]
    assert [record.name for _, record in second.kept] == ["node.leaving"]
    assert {record.round for _, record in first.kept} == {3}


def test_a_recovery_ends_with_the_first_step_of_the_next_round() -> None:
    told = Told()
    told.reporter.interrupted()
    first = Note("step.first", 0, 3, {"step": 8})
    told.reporter.note(first)
    assert not told.events, "that step was made before the round was left"
    told.state = replace(told.state, round=replace(ROUND, number=4))
    told.reporter.note(replace(first, round=4))
    told.reporter.note(replace(first, round=4))
    (recovered,) = told.events
    assert isinstance(recovered, RoundRecovered)
    assert (recovered.round, recovered.step) == (4, 8)


def test_a_hint_is_given_once_and_by_one_node() -> None:
    first, second = Told("a"), Told("b")
    for told in (first, second):
        told.reporter.give_hints()
        told.reporter.give_hints()
    assert [event.about for event in first.events if isinstance(event, Hint)] == ["max-restarts"]
    assert not second.events
