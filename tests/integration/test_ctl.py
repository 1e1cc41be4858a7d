"""``elasticctl`` on a real etcd: what it reads, what it changes, and how it fails."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.ctl.elasticctl import main
from elastic_runtime.config import Endpoint
from elastic_runtime.endpoint import parse_endpoint
from elastic_runtime.protocol.records import (
    EventRecord,
    JobRecord,
    NodeRecord,
    OutcomeRecord,
    Record,
)
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.probe import ProbeServer
from elastic_runtime.rendezvous.store_contract import Put, Store, Transaction
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.rendezvous.stores.open_store import open_store
from elastic_runtime.system.listening import listen

if TYPE_CHECKING:
    from tests.etcd_server import EtcdServer

SECRET = secrets.token_hex(32)
JOB = JobRecord("life", 1, 2, 1, 2, entry="train.py", secret=SECRET)
NODE = NodeRecord("a1", "a", "127.0.0.1", 2, incarnation="life", step=40)
ROUND = RoundRecord(3, "life", (Member("a1", "a", "127.0.0.1", 2),), 1, "node b lost")

Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["ctl-", "ctl/"])
def endpoint(etcd: EtcdServer, request: pytest.FixtureRequest) -> str:
    """A prefix of its own for each test, of one part and of two."""
    return f"etcd://{etcd.endpoint}/{request.param}{secrets.token_hex(4)}"


@pytest.fixture
def store(etcd: EtcdServer, endpoint: str) -> Iterator[Store]:
    prefix = parse_endpoint(endpoint).prefix
    store = open_store(Endpoint("etcd", (etcd.endpoint,), prefix=prefix), "run", 10, 10)
    yield store
    store.close()


@pytest.fixture
def ctl(endpoint: str, capsys: pytest.CaptureFixture[str]) -> Ctl:
    def call(*arguments: str, run: str = "run") -> tuple[int, str, str]:
        which = [] if arguments[0] == "runs" else ["--run-id", run]
        code = main([*arguments, "--rdzv-endpoint", endpoint, *which])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def _write(store: Store, **records: Record) -> None:
    puts = tuple(Put(key.replace("__", "/"), value.encode()) for key, value in records.items())
    assert store.apply(Transaction(puts=puts))


def _job(ctl: Ctl) -> dict[str, Any]:
    code, out, _ = ctl("status", "--format", "json")
    assert code == 0
    told: dict[str, Any] = json.loads(out)
    return told


@pytest.mark.golden("elasticctl status")
def test_status_asks_the_nodes_too(store: Store, ctl: Ctl) -> None:
    probe = ProbeServer("127.0.0.1", lambda: {"node": "a1", "step": 47}, lambda: SECRET)
    other = ProbeServer("127.0.0.1", lambda: {"node": "another life", "step": 99}, lambda: SECRET)
    try:
        nodes = (
            replace(NODE, probe_port=probe.port),
            replace(NODE, node="b1", name="b", probe_port=other.port, step=1),
        )
        _write(store, job=JOB, round=ROUND, nodes__a1=nodes[0], nodes__b1=nodes[1])
        told = _job(ctl)
        assert (told["state"], told["round"], told["step"]) == ("running", 3, 47)
        assert [(n["name"], n["answers"], n["step"]) for n in told["nodes"]] == [
            ("a", True, 47),
            ("b", False, 1),
        ]
        _, table, _ = ctl("status")
        assert "round   3: 2 workers on 1 node (node b lost)" in table
    finally:
        probe.close()
        other.close()


def test_nothing_that_is_shown_holds_the_secret(store: Store, ctl: Ctl) -> None:
    _write(store, job=JOB, round=ROUND, nodes__a1=NODE)
    for form in ("json", "table"):
        for command in ("status", "events", "runs"):
            code, out, err = ctl(command, "--format", form)
            assert code == 0
            assert SECRET not in out + err
    code, out, err = ctl("scale", "--max", "3")
    assert code == 0
    assert SECRET not in out + err
    entries = {entry.key: entry.value for entry in store.read("")}
    assert JobRecord.decode("job", entries["job"]).secret == SECRET  # it is kept all the same


def test_runs_lists_every_run_of_a_c10d_store(capsys: pytest.CaptureFixture[str]) -> None:
    host = StoreServer(listen("127.0.0.1"))
    endpoint = Endpoint("c10d", (f"127.0.0.1:{host.port}",), hosted_here=True)
    probe = ProbeServer("127.0.0.1", lambda: {"node": "a1", "step": 47}, lambda: SECRET)
    stores = [open_store(endpoint, run_id, 10, 10) for run_id in ("run", "a/b")]
    try:
        for store in stores:
            store.start("a1", lambda event: None)
            _write(store, job=JOB)
        _write(stores[0], round=ROUND)
        _write(stores[0], nodes__a1=replace(NODE, probe_port=probe.port))
        assert main(["runs", "--format", "json", "--rdzv-endpoint", str(endpoint)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [(run["run_id"], run["step"]) for run in found] == [("a/b", -1), ("run", 47)]
        assert main(["status", "--rdzv-endpoint", str(endpoint)]) == 2
        assert "Name it with --run-id; elasticctl runs lists them" in capsys.readouterr().err
    finally:
        for store in stores:
            store.close()
        probe.close()
        host.close()


def test_runs_lists_every_run_under_the_prefix(
    etcd: EtcdServer, endpoint: str, store: Store, ctl: Ctl
) -> None:
    prefix = parse_endpoint(endpoint).prefix
    second = open_store(Endpoint("etcd", (etcd.endpoint,), prefix=prefix), "a b", 10, 10)
    _write(store, job=JOB, round=ROUND, nodes__a1=NODE)
    _write(second, job=replace(JOB, entry="other.py"))
    second.close()
    code, out, _ = ctl("runs", "--format", "json")
    assert code == 0
    assert [(r["run_id"], r["entry"]) for r in json.loads(out)] == [
        ("a b", "other.py"),
        ("run", "train.py"),
    ]
    assert "other.py" in ctl("runs")[1]


@pytest.mark.golden("elasticctl scale")
def test_scale_changes_the_present_bounds_only(store: Store, ctl: Ctl) -> None:
    _write(store, job=JOB, nodes__a1=NODE)
    assert ctl("scale", "--max", "5")[:2] == (0, "run run: 1 to 5 nodes\n")
    assert ctl("scale", "--min", "2", "--max", "4")[0] == 0
    assert ctl("scale", "--min", "9")[0] == 2  # more than the maximum
    told = _job(ctl)
    assert (told["bounds"], told["launch_bounds"]) == ([2, 4], [1, 2])


def test_events_are_listed_in_order(store: Store, ctl: Ctl) -> None:
    events = {f"events__{n}": EventRecord(9.0 - n, f"e{n}", n, "a", "") for n in range(3)}
    _write(store, job=JOB, **events)
    told = json.loads(ctl("events", "--format", "json")[1])
    assert [event["name"] for event in told] == ["e2", "e1", "e0"]
    assert "e1" in ctl("events")[1]


def test_watching_ends_with_the_job(store: Store, ctl: Ctl) -> None:
    end = OutcomeRecord("life", False, 1, "ValueError: x", node="a")
    _write(store, job=JOB, round=ROUND, outcome=end)
    code, out, _ = ctl("status", "--watch", "--format", "json")
    assert (code, json.loads(out)["state"]) == (0, "failed")
    assert ctl("status", "--watch")[0] == 0


def test_a_run_that_is_not_there(ctl: Ctl) -> None:
    assert ctl("scale", "--max", "2", run="nothing")[0] == 2
    assert json.loads(ctl("runs", "--format", "json")[1]) == []


def test_a_store_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["status", "--rdzv-endpoint", "etcd://127.0.0.1:1", "--run-id", "x"])
    err = capsys.readouterr().err
    assert code == 4
    assert err.startswith("elasticctl: error: ")
    assert "127.0.0.1:1" in err
    assert err.count("\n") <= 2


def test_a_store_that_has_ended_with_its_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--rdzv-endpoint", "c10d://127.0.0.1:1"]) == 4  # nobody listens there
    assert "the last lines of elastic-run say how it ended" in capsys.readouterr().err


def test_settings_come_from_the_environment_as_well(
    store: Store, endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(store, job=JOB, nodes__a1=NODE)
    monkeypatch.setenv("ELASTIC_RDZV_ENDPOINT", endpoint)
    monkeypatch.setenv("PET_RDZV_ID", "run")
    assert main(["status"]) == 0
    assert "run run · train.py" in capsys.readouterr().out
