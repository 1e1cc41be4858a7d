"""Commands on a run, over a store in memory: what they read, what they change, what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli import run_in_store
from elastic_runtime.cli.ctl.elasticctl import main
from elastic_runtime.cli.ctl.run_commands import by_run
from elastic_runtime.errors import EXIT_DONE
from elastic_runtime.protocol.records import JOB, OUTCOME, JobRecord, OutcomeRecord, Record
from elastic_runtime.rendezvous.store_contract import Put, StoreEntry, Transaction
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from tests.unit.cli.ctl.runs import JOB as A_JOB
from tests.unit.cli.ctl.runs import A

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.store_contract import Store

Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store() -> Store:
    """What is in the store of the run."""
    return MemoryStore(MemoryServer(), 2.0)


@pytest.fixture
def ctl(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ctl:
    """Runs a command on it: the exit code, what is printed, and what went wrong."""
    server = store._server
    monkeypatch.setattr(run_in_store, "open_store", lambda *_: MemoryStore(server, 2.0))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--rdzv-endpoint", "etcd://127.0.0.1:1/x", "--run-id", "r"])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def put(store: Store, **records: Record) -> None:
    assert store.apply(
        Transaction(puts=tuple(Put(key, it.encode()) for key, it in records.items()))
    )


def job_in(store: Store) -> JobRecord:
    (entry,) = store.read(JOB)
    return JobRecord.decode(JOB, entry.value)


def test_a_run_is_shown_as_it_is_in_the_store(store: Store, ctl: Ctl) -> None:
    put(store, job=A_JOB)
    code, out, _ = ctl("status", "--format", "json")
    assert (code, json.loads(out)["run_id"]) == (0, "r")


def test_a_run_that_is_not_there_is_named(ctl: Ctl) -> None:
    code, _, err = ctl("status")
    assert code != 0
    assert "there is no run 'r' in etcd://127.0.0.1:1/x" in err


def test_scaling_changes_the_present_bounds_only(store: Store, ctl: Ctl) -> None:
    put(store, job=A_JOB)
    code, out, _ = ctl("scale", "--max", "3")
    assert (code, out) == (0, "run r: 1 to 3 nodes\n")
    assert job_in(store) == replace(A_JOB, max_nodes=3)


def test_a_job_that_has_ended_is_not_scaled(store: Store, ctl: Ctl) -> None:
    ended = OutcomeRecord(A_JOB.incarnation, True, EXIT_DONE, "all nodes are done")
    put(store, **{JOB: A_JOB, OUTCOME: ended})
    code, _, err = ctl("scale", "--max", "3")
    assert code != 0
    assert "has ended: all nodes are done" in err
    assert job_in(store) == A_JOB
    # The end of an earlier life says nothing.
    put(store, outcome=replace(ended, incarnation="earlier"))
    assert ctl("scale", "--max", "3")[0] == 0


def test_runs_are_told_apart_by_their_prefix() -> None:
    def entry(key: str, record: Record) -> StoreEntry:
        return StoreEntry(key, record.encode(), 1, 1)

    found = by_run(
        [
            entry("b%2Fc/job", A_JOB),
            entry("a/nodes/a1", A),
            entry("a/job", A_JOB),
            StoreEntry("of-another-program", b"x", 1, 1),
            StoreEntry("empty/of-another-program", b"x", 1, 1),
        ]
    )
    assert list(found) == ["a", "b/c"]
    assert (found["a"].job, set(found["a"].nodes)) == (A_JOB, {"a1"})
