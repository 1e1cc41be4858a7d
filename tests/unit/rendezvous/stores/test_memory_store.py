"""The store in memory keeps the contract, and its misfortunes are what they are called."""

from __future__ import annotations

import pytest

from elastic_runtime.clock import ManualClock
from elastic_runtime.config import Endpoint
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import (
    Found,
    LeaseLost,
    Lost,
    Put,
    StoreSnapshot,
    Transaction,
)
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from elastic_runtime.rendezvous.stores.open_store import open_store, store_complaint
from tests.conformance.store_contract import NewStore, OpenNode, StoreContract, open_node

__all__ = ["open_node"]


@pytest.fixture
def clock() -> ManualClock | None:
    return None


@pytest.fixture
def server(clock: ManualClock | None) -> MemoryServer:
    return MemoryServer(clock)


@pytest.fixture
def new_store(server: MemoryServer) -> NewStore:
    return lambda ttl: MemoryStore(server, ttl)


class TestContract(StoreContract):
    pass


def test_a_stopped_server_answers_nothing_and_forgets_nothing(
    server: MemoryServer, open_node: OpenNode
) -> None:
    node = open_node("a")
    node.put("job", b"j")
    server.stop()
    node.ear.hears(Lost)
    with pytest.raises(StoreUnavailable):
        node.put("job", b"k")
    with pytest.raises(StoreUnavailable):
        node.store.read("")
    before = node.ear.count(StoreSnapshot)
    server.resume()
    node.ear.hears(Found)
    node.ear.hears(StoreSnapshot, before + 1)
    assert node.ear.known["job"].value == b"j"
    assert not node.ear.last_snapshot().forgot


def test_a_server_that_forgets_says_so_once(server: MemoryServer, open_node: OpenNode) -> None:
    node = open_node("a")
    node.register()
    server.stop()
    server.forget()
    server.resume()
    node.ear.until(lambda: node.ear.last_snapshot().forgot, "that it forgot")
    assert node.ear.last_snapshot().entries == ()
    node.register(b"again")
    node.store.look(True, frozenset())
    node.ear.until(lambda: node.ear.last_snapshot().wide, "a wide snapshot")
    assert not node.ear.last_snapshot().forgot


def test_one_lease_can_be_ended(server: MemoryServer, open_node: OpenNode) -> None:
    a, b = open_node("a"), open_node("b")
    a.register()
    b.register()
    server.expire(a.key)
    a.ear.hears(LeaseLost)
    assert [entry.key for entry in b.store.read("")] == [b.key]
    assert b.ear.count(LeaseLost) == 0


@pytest.mark.parametrize("clock", [ManualClock()])
def test_leases_end_by_the_clock_of_the_server(
    clock: ManualClock, server: MemoryServer, open_node: OpenNode
) -> None:
    a, b = open_node("a", ttl=5.0), open_node("b", ttl=5.0)
    a.register()
    b.register()
    clock.advance(4.0)
    a.store.beat()
    clock.advance(4.0)
    server.expire_due()
    assert [entry.key for entry in a.store.read("")] == [a.key]


# ---------------------------------------------------------------- which store an endpoint names


@pytest.mark.parametrize(("backend", "kind"), [("etcd", EtcdStore), ("c10d", EmbeddedStore)])
def test_each_kind_of_endpoint_has_its_store(backend: str, kind: type) -> None:
    store = open_store(Endpoint(backend, ("127.0.0.1:1",), hosted_here=True), "run", 10, 1)
    assert isinstance(store, kind)
    store.close()


def test_another_kind_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'static'"):
        open_store(Endpoint("static", ("h:1",)), "run", 10, 1)


def test_an_embedded_store_has_nothing_to_complain_about() -> None:
    assert store_complaint(Endpoint("c10d", ("127.0.0.1:1",))) == ""


# ---------------------------------------------------------------- what a transaction may be


@pytest.mark.parametrize(
    ("puts", "deletes"),
    [((Put("a", b"1"), Put("b", b""), Put("a", b"2")), ()), ((Put("a", b""),), ("b", "a"))],
)
def test_a_transaction_writes_each_key_once(
    puts: tuple[Put, ...], deletes: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="writes one of these keys twice: \\['a', 'a', 'b'\\]"):
        Transaction(puts=puts, deletes=deletes)


def test_what_is_removed_may_be_named_twice() -> None:
    assert Transaction(deletes=("a", "a")).deletes == ("a", "a")
