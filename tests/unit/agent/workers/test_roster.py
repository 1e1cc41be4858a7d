"""The workers of an agent, and when each of them is to be ended."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_runtime.agent.workers.roster import Roster, Worker
from elastic_runtime.agent.workers.start_retry import StartRetry


def _add(roster: Roster, local_rank: int, descriptors: list[int] | None = None) -> Worker:
    spec: Any = SimpleNamespace(local_rank=local_rank)
    return roster.add(spec, {"op": "start"}, descriptors or [], [])


def test_each_worker_has_a_number_of_its_own_also_in_its_request() -> None:
    roster = Roster()
    first, second = _add(roster, 0), _add(roster, 0)
    assert [first.request["id"], second.request["id"]] == [first.id, second.id]
    assert first.id != second.id
    assert roster.get(second.id) is second
    roster.remove(first)
    assert roster.get(first.id) is None
    assert _add(roster, 1).id not in (first.id, second.id), "a late message may name an old one"


def test_workers_are_found_by_their_local_ranks() -> None:
    roster = Roster()
    workers = [_add(roster, local_rank) for local_rank in range(3)]
    assert roster.all() == workers
    assert roster.all((0, 2)) == [workers[0], workers[2]]
    assert roster.all(()) == []


def test_the_earliest_end_counts_and_each_overdue_worker_is_named_once() -> None:
    roster = Roster()
    early, late, spared = (_add(roster, local_rank) for local_rank in range(3))
    assert roster.end_at(10.0, (0,)) == [early]
    roster.end_at(20.0, (0, 1))
    assert sorted(roster.moments(5.0)) == [10.0, 20.0]
    assert roster.overdue(9.9) == []
    assert roster.overdue(10.0) == [early]
    assert roster.overdue(20.0) == [late]
    assert roster.overdue(99.0) == []
    assert sorted(roster.moments(5.0)) == [15.0, 25.0]
    assert roster.unreported(14.9, 5.0) == []
    assert roster.unreported(15.0, 5.0) == [early]
    assert roster.unreported(25.0, 5.0) == [early, late], "once in a while"
    assert spared.kill_at is None


def test_only_starts_that_were_refused_and_not_sent_again_are_tried_again() -> None:
    roster = Roster()
    refused, sent, _waits = (_add(roster, local_rank) for local_rank in range(3))
    refused.retry = sent.retry = StartRetry(since=0.0, refusals=1, again=1.0)
    sent.sent = True
    assert roster.refused() == [(refused, refused.retry)]


def test_what_only_a_start_needs_is_closed_once() -> None:
    reading, writing = os.pipe()
    worker = _add(Roster(), 0, [reading])
    worker.close()
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)
    worker.close()


def test_one_that_dies_is_no_worker_any_more_and_holds_the_next_one_up() -> None:
    roster = Roster()
    first, other = _add(roster, 0), _add(roster, 1)
    first.dies = True
    following = _add(roster, 0)
    assert roster.all() == [other, following]
    assert roster.dying() == [first]
    assert roster.has_predecessor(following)
    assert not roster.has_predecessor(other)
    roster.remove(first)
    assert not roster.has_predecessor(following)
