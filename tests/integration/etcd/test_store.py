"""What the store on a healthy etcd does beyond ``tests/conformance/store_contract.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Expect,
    Put,
    StoreSnapshot,
    Transaction,
)
from tests.etcd_server import etcdctl
from tests.integration.etcd.listening import Listening

if TYPE_CHECKING:
    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd


# ---------------------------------------------------------------- transactions


@pytest.mark.parametrize("count", [127, 128, 300])
def test_deletes_beyond_one_transaction_of_etcds(etcd: EtcdServer, count: int) -> None:
    with Listening(etcd.endpoint) as node:
        keys = [f"nodes/{number:03}" for number in range(count)]
        for start in range(0, count, 100):
            puts = tuple(Put(key, b"") for key in keys[start : start + 100])
            assert node.store.apply(Transaction(puts=puts))
        seal = Transaction((Expect("round", ABSENT),), (Put("round", b"1"),), tuple(keys))
        assert node.store.apply(seal)
        assert [entry.key for entry in node.store.read("")] == ["round"]
        # A second one, whose condition fails, does not touch anything.
        node.put("nodes/000", b"again")
        assert not node.store.apply(seal)
        assert {entry.key for entry in node.store.read("")} == {"round", "nodes/000"}


def test_what_cannot_be_done_at_once_is_refused(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as node:
        with pytest.raises(ValueError, match="at most 128"):
            node.store.apply(Transaction(puts=tuple(Put(f"events/{i}", b"") for i in range(129))))
        assert node.store.read("") == ()


def test_one_run_is_no_part_of_another(etcd: EtcdServer) -> None:
    with (
        Listening(etcd.endpoint) as node,
        Listening(etcd.endpoint, f"{node.run_id}/nodes") as other,
    ):
        other.put("job", b"theirs")
        assert node.store.read("") == ()
        assert [entry.value for entry in other.store.read("")] == [b"theirs"]


def test_another_client_reads_what_we_wrote(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint, "independent") as node:
        node.put("job", b"content")
        assert etcdctl(etcd.endpoint, "get", "/test/independent/job").split() == [
            "/test/independent/job",
            "content",
        ]


# ---------------------------------------------------------------- what is heard


def test_a_wide_view_sees_a_transaction_in_one_piece(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as node:
        node.put("nodes/a", b"")
        node.start()
        node.store.look(wide=True, without=frozenset())
        node.ear.hears(StoreSnapshot, wide=True)
        node.store.apply(Transaction(puts=(Put("round", b"1"),), deletes=("nodes/a",)))
        change = node.ear.hears(Changed)
        assert ([e.key for e in change.puts], change.deletes) == (["round"], ("nodes/a",))


def test_when_the_oldest_vanishes_the_next_one_is_followed(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint, node="own") as node:
        for key in ("nodes/1", "nodes/2"):
            node.put(key, b"")
        node.start()
        node.register()
        mark = len(node.ear.events)
        node.store.apply(Transaction(deletes=("nodes/1",)))
        change = node.ear.hears(Changed, mark)
        assert [entry.key for entry in change.puts] == ["nodes/2"]
        assert change.deletes == ("nodes/1",)
        node.put("nodes/2", b"heard")
        node.ear.has("nodes/2", b"heard")


def test_who_comes_first_learns_of_those_before_it_when_it_registers(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint, node="own") as node:
        assert node.start().entries == ()
        node.put("nodes/other", b"")
        mark = len(node.ear.events)
        node.register()
        shown = node.ear.hears(StoreSnapshot, mark).entries
        assert [entry.key for entry in shown] == ["nodes/other", "nodes/own"]


def test_a_closed_store_answers_no_more(etcd: EtcdServer) -> None:
    node = Listening(etcd.endpoint)
    node.put("job", b"")
    node.store.close()
    with pytest.raises(StoreUnavailable):
        node.put("job", b"")
