"""Participants of a job whose rounds lie in parts, over the store in memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.protocol.records import GROUP, PLANNED, FaultReport
from elastic_runtime.rendezvous.group import keys
from elastic_runtime.rendezvous.memory import MemoryServer, MemoryStore
from elastic_runtime.rendezvous.notices import Excluded, Notice, Sealed, Surveyed, Switch
from elastic_runtime.rendezvous.participant import Participant, Seed
from elastic_runtime.rendezvous.state import Layout, Policy
from elastic_runtime.rendezvous.store import Transaction
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NODES = 12
TTL = 60.0
LAYOUT = Layout(most=4, part=2, first=2, keepers=3)


@dataclass
class Job:
    """A job of twelve nodes."""

    server: MemoryServer = field(default_factory=MemoryServer)
    parts: list[Participant] = field(default_factory=list)
    sealed: dict[int, dict[str, Sealed]] = field(default_factory=dict)
    surveyed: list[Surveyed] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self) -> Participant:
        number = len(self.parts)

        def hear(notice: Notice) -> None:
            with self.lock:
                match notice:
                    case Sealed(last, _):
                        self.sealed.setdefault(last.number, {})[part.node] = notice
                    case Switch(number, _, reason):
                        part.leave(number, FaultReport(number, PLANNED, reason))
                    case Surveyed():
                        self.surveyed.append(notice)
                    case Excluded(reason):
                        self.excluded.append(reason)

        policy = Policy(
            min_nodes=1, max_nodes=NODES, last_call=60.0, batch=0.1, settle=0.5, layout=LAYOUT
        )
        store = MemoryStore(self.server, TTL)
        part = Participant(store, policy, Seed(f"n{number}", "127.0.0.1", 1 + number % 3), hear)
        self.parts.append(part)
        part.join(1)
        return part

    def wait(self, number: int, size: int) -> dict[str, Sealed]:
        """Waits until all members are in this round, and checks that they agree about it."""
        wait_for(lambda: len(self.sealed.get(number, {})) == size, 60, f"round {number}")
        seen = self.sealed[number]
        assert len({one.round.identity for one in seen.values()}) == 1
        places = sorted(
            (
                one.group_rank,
                one.round.first_worker(one.group_rank),
                one.round.member(one.group_rank).workers,
            )
            for one in seen.values()
        )
        assert [rank for rank, _, _ in places] == list(range(size))
        ends = [first + workers for _, first, workers in places]
        assert [first for _, first, _ in places] == [0, *ends[:-1]]
        assert {one.round.world_size for one in seen.values()} == {ends[-1]}
        return seen

    def groups(self) -> set[str]:
        return {entry.key for entry in self.server._read(GROUP)}


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    for part in job.parts:
        part.close()


def _of(job: Job, chosen: Callable[[Sealed], bool], number: int) -> list[Participant]:
    seen = job.sealed[number]
    return [part for part in job.parts if part.node in seen and chosen(seen[part.node])]


def test_all_members_agree_and_the_former_round_leaves_nothing_behind(job: Job) -> None:
    for _ in range(NODES):
        job.add()
    first = job.wait(1, NODES)
    known = sorted(len(one.round.members) for one in first.values())
    assert known[0] < NODES == known[-1]  # some know all, others only what they need
    part = _of(job, lambda one: not one.round.whole, 1)[0]
    part.leave(1, FaultReport(1, PLANNED, "to see the next round"), stays=False)
    part.goodbye(10)
    second = job.wait(2, NODES - 1)
    assert part.node not in second
    assert job.groups() == set(keys(next(iter(second.values())).round))


def test_a_member_that_is_to_look_for_the_others_learns_who_they_are(job: Job) -> None:
    for _ in range(NODES):
        job.add()
    job.wait(1, NODES)
    part = _of(job, lambda one: not one.round.whole, 1)[0]
    assert part.state.current is not None
    assert not part.state.current.whole
    part.look_for_members(1)
    wait_for(lambda: bool(job.surveyed), 30, "what it found")
    assert part.state.current.whole


def test_a_store_that_forgets_is_given_all_of_the_round_by_who_keeps_it(job: Job) -> None:
    for _ in range(NODES):
        job.add()
    seen = job.wait(1, NODES)
    lead = _of(job, lambda one: one.group_rank == 0, 1)[0]
    before = job.groups()
    job.server.stop()
    job.parts.remove(lead)
    lead.close()  # the store forgets, and who led is gone
    job.server.forget()
    job.server.resume()
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
    lead = _of(job, lambda one: one.group_rank == 0, 1)[0]
    heir = _of(job, lambda one: one.group_rank == 1, 1)[0]
    assert not job.sealed[1][heir.node].round.whole  # who leads next does not know all members
    heir._store.apply(Transaction(deletes=tuple(job.groups())))
    lead.leave(1, FaultReport(1, PLANNED, "to see the next round"), stays=False)
    lead.goodbye(10)
    job.wait(2, NODES - 1)
    assert not job.excluded
