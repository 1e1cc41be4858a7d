"""Commands of ``elasticctl`` on a run: what they read, what they change, how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import pytest

from elastic_runtime.cli import run_in_store
from elastic_runtime.cli.ctl import elasticctl
from elastic_runtime.cli.ctl.elasticctl import main
from elastic_runtime.cli.ctl.run_commands import by_run
from elastic_runtime.cli.ctl.slurm_option import or_slurm, scaled_by_slurm, shown_with_elements
from elastic_runtime.errors import (
    EXIT_DONE,
    EXIT_STORE_UNREACHABLE,
    EXIT_USAGE,
    StoreUnreachable,
    UsageError,
)
from elastic_runtime.protocol.records import JOB, OUTCOME, JobRecord, OutcomeRecord, Record
from elastic_runtime.rendezvous.store_contract import Put, StoreEntry, Transaction
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from tests.unit.cli.ctl.runs import JOB as A_JOB
from tests.unit.cli.ctl.runs import A
from tests.unit.cli.slurm.test_slurm_calls import ALLOCATION, ARRAY, PENDING

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.store_contract import Store
    from tests.unit.cli.stand_ins import StandIns


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


def test_every_command_that_is_listed_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == EXIT_USAGE
    capsys.readouterr()
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in elasticctl._COMMANDS:
        assert f"\n  {name} " in shown
        assert main([name, "--help"]) == 0


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (StoreUnreachable("it is away"), EXIT_STORE_UNREACHABLE, "elasticctl: error: it is away"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
        (OSError(28, "No space left on device"), 1, "cannot write or read"),
    ],
)
def test_how_a_command_ends_that_fails(
    raised: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def status() -> None:
        raise raised

    monkeypatch.setattr(elasticctl, "_load", lambda name: status)
    muted: list[object] = []
    monkeypatch.setattr(elasticctl, "mute", muted.append)
    assert main(["status"]) == code
    assert words in capsys.readouterr().err
    assert bool(muted) == isinstance(raised, OSError), "nobody reads what is left in the buffer"


_ETCD = "etcd://h"


def _asked(stand_ins: StandIns, shown: str, **values: Any) -> dict[str, Any] | None:
    """What a command is called with; None: it is not called."""
    stand_ins.put("scontrol", f"[ $2 = show ] && [ $3 = job ] && echo '{shown}' || exit 0")
    stand_ins.put("squeue", "echo '0 RUNNING localhost'; echo '1 RUNNING n1'; echo '2 PENDING '")
    heard: list[dict[str, Any]] = []
    act = scaled_by_slurm if "low" in values else shown_with_elements
    usual = {"rdzv_endpoint": None, "run_id": None, "job": None, "form": "table"}
    command = or_slurm(act)(lambda **given: heard.append(given))
    command(slurm_job="17", **{**usual, **values})
    return heard[0] if heard else None


def test_the_store_of_an_allocation_is_where_its_batch_script_runs(stand_ins: StandIns) -> None:
    found = _asked(stand_ins, ALLOCATION.replace("gpu07", "localhost"))
    assert found is not None
    assert (found["rdzv_endpoint"], found["run_id"]) == ("c10d://localhost:15017", "slurm-17")
    found = _asked(stand_ins, PENDING, rdzv_endpoint=_ETCD, run_id="r7")
    assert found is not None
    assert (found["rdzv_endpoint"], found["run_id"]) == (_ETCD, "r7")


def test_a_job_that_does_not_run_has_no_store(stand_ins: StandIns) -> None:
    with pytest.raises(UsageError, match="job 17 is PENDING, so it has no store now"):
        _asked(stand_ins, PENDING)


def test_a_job_that_is_over_or_still_starts_says_so(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="job 17 is COMPLETED: its output says how"):
        _asked(stand_ins, ALLOCATION.replace("RUNNING", "COMPLETED"))
    here = ALLOCATION.replace("gpu07", "localhost")
    stand_ins.put("scontrol", f"echo '{here}'")
    assert elasticctl.main(["status", "--slurm", "17"]) == 4  # nobody listens at its port
    said = capsys.readouterr().err
    assert "job 17 is RUNNING, but nothing is seen of it yet" in said
    assert "its nodes are still starting, or its store is at another port" in said


def test_an_allocation_does_not_grow(stand_ins: StandIns) -> None:
    with pytest.raises(UsageError, match="Slurm gives it no more nodes"):
        _asked(stand_ins, ALLOCATION, job="4", low=None, high=None)
    here = ALLOCATION.replace("gpu07", "localhost")
    assert _asked(stand_ins, here, low=None, high=2)


def test_the_elements_of_an_array_are_slurms(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _asked(stand_ins, ARRAY) is None
    assert capsys.readouterr().out.startswith("array 21: 1 pending, 2 running (at most 4 at a time")
    assert _asked(stand_ins, ARRAY, job="1", low=None, high=None) is None
    assert capsys.readouterr().out.endswith("run at a time; asked to leave: 1\n")
    _asked(stand_ins, ARRAY, job="12", low=None, high=None)
    assert capsys.readouterr().out.endswith("at a time; it has 3 that have not ended\n")
    _asked(stand_ins, ARRAY, job="1", low=None, high=None)
    assert stand_ins.calls()[-2:] == [
        "scontrol update jobid=21 ArrayTaskThrottle=1",
        "scontrol requeue 21_1",
    ]


def test_the_run_of_an_array_is_in_the_store_that_is_named(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _asked(stand_ins, ARRAY, rdzv_endpoint=_ETCD)
    assert found is not None
    assert found["run_id"] == "slurm-21"
    assert "2 running" in capsys.readouterr().out
    assert _asked(stand_ins, ARRAY, rdzv_endpoint=_ETCD, low=1, high=None)
    with pytest.raises(UsageError, match="name the etcd"):
        _asked(stand_ins, ARRAY, low=1, high=None)


@pytest.mark.parametrize("words", ["events --slurm 17", "scale --slurm 17", "scale --slurm 17 0"])
def test_what_is_missing_is_said(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    stand_ins.put("scontrol", f"echo '{ARRAY}'")
    assert elasticctl.main(words.split()) == 2
    said = capsys.readouterr().err
    assert "name the etcd" in said or "At least one" in said
