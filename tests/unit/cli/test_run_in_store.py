"""A run, for whoever is none of its nodes: its bounds, and how it has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.run.store_host import hosted
from elastic_runtime.cli.run.store_target import EmbeddedTarget
from elastic_runtime.cli.run_in_store import FollowedRun, RunInStore, scaled_job
from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.records import GONE, NODES, OUTCOME, OutcomeRecord
from elastic_runtime.rendezvous.store_contract import Put, Transaction
from tests.processes import wait_for
from tests.unit.cli.ctl.runs import JOB as A_JOB
from tests.unit.cli.ctl.runs import A

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.protocol.records import Record


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0, None, "a job needs at least one node"),
        (3, None, "the minimum 3 would be above the maximum 2"),
        (None, 1, "the minimum 2 would be above the maximum 1"),
        (1, 1, "a multiple of 2 nodes"),
    ],
)
def test_bounds_that_no_world_fits_are_refused(
    low: int | None, high: int | None, message: str
) -> None:
    job = replace(A_JOB, min_nodes=2, max_nodes=2, node_unit=2)
    with pytest.raises(UsageError, match=message):
        scaled_job(job, low, high)


@pytest.fixture
def run() -> Iterator[RunInStore]:
    """A run in a store that this process hosts."""
    with hosted(EmbeddedTarget(), "") as endpoint:
        yield RunInStore(endpoint, "r7")


def _write(run: RunInStore, key: str, record: Record) -> None:
    with run.store() as store:
        assert store.apply(Transaction((), (Put(key, record.encode()),)))


DONE = OutcomeRecord("1", True, 0, "done")


def test_what_was_heard_of_a_run_is_known_when_its_store_is_gone() -> None:
    with hosted(EmbeddedTarget(), "") as endpoint:
        run = RunInStore(endpoint, "r7")
        followed = FollowedRun(run)
        with followed.listening():
            assert followed.outcome() is None
            _write(run, OUTCOME, DONE)
            wait_for(lambda: followed._heard, 60, "the outcome")
    assert run.outcome() is None
    assert followed.outcome() == DONE
    assert followed.is_over()


def test_what_has_come_of_a_run_before_does_not_count(run: RunInStore) -> None:
    _write(run, OUTCOME, DONE)
    followed = FollowedRun(run)
    assert followed.before == DONE
    with followed.listening():
        wait_for(lambda: followed._heard, 60, "the former outcome")
        assert followed.outcome() is None
        failed = OutcomeRecord("2", False, 1, "failed")
        _write(run, OUTCOME, failed)
        wait_for(lambda: followed.outcome() == failed, 60, "the new one")


def test_a_run_is_over_when_all_nodes_have_left_it(run: RunInStore) -> None:
    followed = FollowedRun(run)
    assert not followed.is_over()  # none has come yet
    _write(run, f"{NODES}a1", A)
    assert not followed.is_over()
    _write(run, f"{NODES}a1", replace(A, status=GONE))
    assert followed.is_over()
