"""A round of which nobody has all members any more: its job gets out of it, on real stores."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.core.round_parts import keys
from elastic_runtime.rendezvous.store_contract import Transaction
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from tests.crowd import NODES, TTL, Job
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.rendezvous.core.notices import Sealed
    from elastic_runtime.rendezvous.participant import Participant
    from elastic_runtime.rendezvous.store_contract import StoreEntry
    from tests.etcd_server import EtcdServer


@dataclass
class World:
    """A job on one of the stores, and how that stops and comes back without its memory."""

    job: Job
    stop: Callable[[], None]
    come_back: Callable[[], None]


def _in_memory() -> World:
    server = MemoryServer()

    def come_back() -> None:
        server.forget()
        server.resume()

    job = Job(lambda: MemoryStore(server, TTL), server._read)
    return World(job, server.stop, come_back)


def _on_etcd(server: EtcdServer) -> World:
    endpoint = Endpoint("etcd", (server.endpoint,))

    def store() -> EtcdStore:
        return EtcdStore(endpoint, "run", TTL, 15.0)

    def read(prefix: str) -> tuple[StoreEntry, ...]:
        with closing(store()) as one:
            return one.read(prefix)

    job = Job(store, read, settle=2.0)
    return World(job, server.kill, lambda: server.restart(wipe=True))


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    etcd = request.param == "etcd"
    world = _on_etcd(request.getfixturevalue("new_etcd")()) if etcd else _in_memory()
    yield world
    for part in world.job.parts:
        part.close()


def _begin(job: Job) -> tuple[dict[str, Sealed], list[Participant]]:
    """The first round of all nodes, and those of them that know all members."""
    for _ in range(NODES):
        job.add()
    return job.wait(1, NODES), job.of(1, lambda one: one.round.whole)


def _next_round(job: Job, first: dict[str, Sealed], left: int) -> None:
    """The survivors form the next round, as the nodes that they are and in their order."""
    second = job.wait(2, left)
    before = sorted(second, key=lambda node: first[node].group_rank)
    assert [second[node].group_rank for node in before] == list(range(left))
    assert {one.round.incarnation for one in second.values()} == {
        one.round.incarnation for one in first.values()
    }
    assert not job.excluded
    named = set(keys(next(iter(second.values())).round))
    wait_for(lambda: job.groups() == named, 30, "the parts of the new round, and no others")
    assert any("the store has lost the members of round 1" in reason for reason in job.reasons)


def test_members_say_where_they_were_when_nobody_knows_it_any_more(world: World) -> None:
    job = world.job
    first, keepers = _begin(job)
    other = job.of(1, lambda one: not one.round.whole)[0]
    assert other._store.apply(Transaction(deletes=tuple(job.groups())))
    job.kill(keepers)
    _next_round(job, first, NODES - len(keepers))


def test_a_store_that_forgets_is_told_of_the_round_by_who_knows_only_some_of_it(
    world: World,
) -> None:
    job = world.job
    first, keepers = _begin(job)
    world.stop()
    job.kill(keepers)
    world.come_back()
    _next_round(job, first, NODES - len(keepers))
