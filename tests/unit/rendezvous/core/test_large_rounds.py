"""Participants of a job whose rounds lie in parts, over the store in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.protocol.records import PLANNED, FaultReport
from elastic_runtime.rendezvous.core.membership_events import Goodbye, LeftRound, LookForMembers
from elastic_runtime.rendezvous.core.round_parts import keys
from elastic_runtime.rendezvous.store_contract import Transaction
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from tests.crowd import NODES, TTL, Job
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def job(server: MemoryServer) -> Iterator[Job]:
    job = Job(lambda: MemoryStore(server, TTL), server._read)
    yield job
    for part in job.parts:
        part.close()


def test_all_members_agree_and_the_former_round_leaves_nothing_behind(job: Job) -> None:
    for _ in range(NODES):
        job.add()
    first = job.wait(1, NODES)
    known = sorted(len(one.round.members) for one in first.values())
    assert known[0] < NODES == known[-1]  # some know all, others only what they need
    part = job.of(1, lambda one: not one.round.whole)[0]
    fault = FaultReport(1, PLANNED, "to see the next round")
    part.say(LeftRound(1, fault, stays=False))
    part.say(Goodbye())
    assert part.wait_for_goodbye(10)
    second = job.wait(2, NODES - 1)
    assert part.node not in second
    assert job.groups() == set(keys(next(iter(second.values())).round))


def test_a_member_that_is_to_look_for_the_others_learns_who_they_are(job: Job) -> None:
    for _ in range(NODES):
        job.add()
    job.wait(1, NODES)
    part = job.of(1, lambda one: not one.round.whole)[0]
    assert part.state.own.round is not None
    assert not part.state.own.round.whole
    part.say(LookForMembers(1))
    wait_for(lambda: bool(job.surveyed), 30, "what it found")
    assert part.state.own.round.whole


def test_a_store_that_forgets_is_given_all_of_the_round_by_who_keeps_it(
    job: Job, server: MemoryServer
) -> None:
    for _ in range(NODES):
        job.add()
    seen = job.wait(1, NODES)
    lead = job.of(1, lambda one: one.group_rank == 0)[0]
    before = job.groups()
    server.stop()
    job.parts.remove(lead)
    lead.close()  # the store forgets, and who led is gone
    server.forget()
    server.resume()
    wait_for(lambda: job.groups() == before, 30, "the parts of the round")
    wait_for(lambda: len(job.sealed.get(2, {})) == NODES - 1, 60, "the next round")
    second = job.wait(2, NODES - 1)
    assert not job.excluded
    assert {one.round.incarnation for one in second.values()} == {
        one.round.incarnation for one in seen.values()
    }


def test_parts_that_are_gone_are_given_back_when_somebody_needs_them(job: Job) -> None:
    for _ in range(NODES):
        job.add()
    job.wait(1, NODES)
    lead = job.of(1, lambda one: one.group_rank == 0)[0]
    heir = job.of(1, lambda one: one.group_rank == 1)[0]
    assert not job.sealed[1][heir.node].round.whole  # who leads next does not know all members
    heir._store.apply(Transaction(deletes=tuple(job.groups())))
    lead.say(LeftRound(1, FaultReport(1, PLANNED, "to see the next round"), stays=False))
    lead.say(Goodbye())
    assert lead.wait_for_goodbye(10)
    job.wait(2, NODES - 1)
    assert not job.excluded
