"""The keeper of leases, with servers of all kinds."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.clock import ManualClock
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.etcd.etcd_lease import EtcdLease, LeaseKeeper

if TYPE_CHECKING:
    from collections.abc import Callable

TTL = 0.3
TIMEOUT = 60.0


class Server:
    """Answers keep-alives with ``answer``, or not at all while that is None."""

    def __init__(self, answer: float | StoreUnavailable | None) -> None:
        self.answer = answer
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def __call__(self, lease: int, done: Callable[[int | StoreUnavailable], None]) -> None:
        self.asked.put(lease)
        if self.answer is not None:
            done(self.answer)  # type: ignore[arg-type]


def _kept(
    server: Callable[[int, Callable[[int | StoreUnavailable], None]], None],
    ttl: float = TTL,
    since: float = 0.0,
    clock: ManualClock | None = None,
) -> tuple[LeaseKeeper, EtcdLease, queue.SimpleQueue[EtcdLease]]:
    """A lease that was granted so many seconds ago, its keeper, and the leases that are lost."""
    keeper, lost = LeaseKeeper(clock), queue.SimpleQueue[EtcdLease]()
    lease = EtcdLease(7, ttl, keeper.now() - since, server, lost.put)
    keeper.keep(lease)
    return keeper, lease, lost


def test_a_lease_is_kept_as_long_as_its_owner_beats() -> None:
    server, clock = Server(1), ManualClock()  # it answers as etcd, in whole seconds
    keeper, lease, lost = _kept(server, clock=clock)
    for _ in range(10):
        clock.advance(TTL / 2)
        keeper.beat(lease)
        assert server.asked.get(timeout=TIMEOUT) == 7
    assert lost.empty()
    # Nobody beats any more: the lease ends, and is lost once.
    clock.advance(2 * TTL)
    with pytest.raises(queue.Empty):
        server.asked.get(timeout=TTL)
    clock.advance(1)
    assert lost.get(timeout=TIMEOUT) is lease
    with pytest.raises(queue.Empty):
        lost.get(timeout=TTL)


@pytest.mark.parametrize("answer", [None, StoreUnavailable("down")])
def test_a_lease_ends_without_an_answer(answer: StoreUnavailable | None) -> None:
    server = Server(answer)
    keeper, lease, lost = _kept(server)
    keeper.beat(lease)
    assert lost.get(timeout=TIMEOUT) is lease
    assert keeper.now() >= lease.deadline
    assert not server.asked.empty()


@pytest.mark.parametrize("answer", [0, -1])
def test_a_lease_that_the_server_does_not_know_is_lost_at_once(answer: int) -> None:
    keeper, lease, lost = _kept(Server(answer), 60.0, since=30.0)
    assert lost.get(timeout=TIMEOUT) is lease
    assert keeper.now() < lease.deadline


def test_a_deadline_counts_from_the_question_not_from_the_answer() -> None:
    answers: queue.SimpleQueue[Callable[[int | StoreUnavailable], None]] = queue.SimpleQueue()
    keeper, lease, lost = _kept(lambda _, done: answers.put(done), 3.0, since=1.0)
    done = answers.get(timeout=TIMEOUT)
    asked = keeper.now()
    done(5)
    assert lease.deadline <= asked + 5
    keeper.forget(lease)
    assert lost.empty()


def test_a_forgotten_lease_is_not_asked_for_nor_lost() -> None:
    server = Server(1)
    keeper, lease, lost = _kept(server)
    keeper.forget(lease)
    while not server.asked.empty():
        server.asked.get()
    with pytest.raises(queue.Empty):
        server.asked.get(timeout=TTL)
    assert lost.empty()
    # The keeper's thread has nothing left to do; it comes back for the next lease.
    keeper.keep(EtcdLease(8, TTL, keeper.now(), server, lost.put))
    assert server.asked.get(timeout=TIMEOUT) == 8
