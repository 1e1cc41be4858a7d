"""The store on an etcd that is killed, cut off, paused, compacted, or that forgets."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Expect,
    Found,
    LeaseLost,
    Lost,
    Put,
    StoreSnapshot,
    Transaction,
)
from tests.etcd_server import etcdctl
from tests.integration.etcd.listening import Listening
from tests.integration.etcd.proxy import DesertedProxy, Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import NewEtcd
    from tests.etcd_server import EtcdCluster, EtcdServer

pytestmark = pytest.mark.etcd


def _count(node: Listening, numbers: range) -> list[bytes]:
    values = [str(number).encode() for number in numbers]
    for value in values:
        node.put("round", value)
    return values


@contextlib.contextmanager
def _behind(server: EtcdServer, node: str = "") -> Iterator[tuple[Proxy, Listening, Listening]]:
    """The network of a node, that node, and another one of its run, which is not behind it."""
    with (
        Proxy(server.endpoint) as network,
        Listening(network.endpoint, node=node) as one,
        Listening(server.endpoint, one.run_id) as other,
    ):
        yield network, one, other


def _insist(node: Listening, value: bytes) -> None:
    """Writes by compare-and-swap until it is done."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            now = {entry.key: entry for entry in node.store.read("")}.get("round")
            if now and now.value == value:
                return
            if node.put("round", value, now.version if now else ABSENT):
                return


def test_a_connection_that_breaks_while_leaders_vanish_does_not_hide_the_next_one(
    etcd: EtcdServer,
) -> None:
    with _behind(etcd, node="own") as (network, node, other):
        keys = [f"nodes/{number:02d}" for number in range(12)]
        for key in keys:
            other.put(key, b"")
        node.start()
        node.register()
        node.until(lambda values: {keys[0], "nodes/own"} <= values.keys())
        for number, key in enumerate(keys[:-1]):
            other.store.apply(Transaction(deletes=(key,)))
            if number % 2:
                node.until(lambda values, key=key: key not in values, f"the end of {key}")
            network.cut()
            network.heal()
            following = {keys[number + 1], "nodes/own"}
            node.until(lambda values, wanted=following: values.keys() == wanted, str(following))


@pytest.mark.golden("etcd is killed and restarted")
def test_nothing_is_lost_or_doubled_over_a_killed_and_restarted_etcd(new_etcd: NewEtcd) -> None:
    server = new_etcd()
    with Listening(server.endpoint) as reader, Listening(server.endpoint, reader.run_id) as wide:
        for node in (reader, wide):
            node.start()
        wide.store.look(wide=True, without=frozenset())
        wide.ear.hears(StoreSnapshot, wide=True)
        marks = len(reader.ear.events), len(wide.ear.events)
        written = _count(reader, range(50))
        server.kill()
        reader.ear.hears(Lost)
        with pytest.raises(StoreUnavailable):
            reader.put("round", b"never")
        server.restart()
        # etcdctl is at work before our store is back: there is something to catch up with.
        key = f"/test/{reader.run_id}/round"
        for number in range(50, 60):
            etcdctl(server.endpoint, "put", key, str(number))
            written.append(str(number).encode())
        written += _count(reader, range(60, 110))
        for node, mark in zip((reader, wide), marks, strict=True):
            node.ear.has("round", b"109")
            assert node.written("round", mark) == written
            heard = [type(event) for event in node.ear.events[mark:]]
            assert heard.count(Lost) == heard.count(Found) == 1
            assert StoreSnapshot not in heard


def test_what_was_missed_is_delivered_after_a_cut(etcd: EtcdServer) -> None:
    with _behind(etcd) as (network, reader, writer):
        reader.start()
        mark = len(reader.ear.events)
        for turn in range(3):
            _count(writer, range(turn * 10, turn * 10 + 5))
            lost = len(reader.ear.events)
            network.cut()
            reader.ear.hears(Lost, lost)
            _count(writer, range(turn * 10 + 5, turn * 10 + 10))
            network.heal()
            reader.ear.hears(Found, lost)
        reader.ear.has("round", b"29")
        assert reader.written("round", mark) == [str(n).encode() for n in range(30)]
        assert not any(isinstance(event, StoreSnapshot) for event in reader.ear.events[mark:])


def test_a_history_compacted_away_is_replaced_by_a_snapshot(etcd: EtcdServer) -> None:
    with _behind(etcd) as (network, reader, writer):
        writer.put("switch", b"stays")
        reader.start()
        mark = len(reader.ear.events)
        network.cut()
        reader.ear.hears(Lost)
        _count(writer, range(5))
        revision = writer.store.read("round")[0].version
        etcdctl(etcd.endpoint, "compact", str(revision))
        network.heal()
        snapshot = reader.ear.hears(StoreSnapshot, mark)
        assert not snapshot.forgot
        assert [entry.value for entry in snapshot.entries] == [b"stays", b"4"]
        writer.put("round", b"on")
        reader.ear.has("round", b"on")


# ---------------------------------------------------------------- a store that forgets


def test_a_store_that_lost_its_memory_is_noticed(new_etcd: NewEtcd) -> None:
    server = new_etcd()
    with Listening(server.endpoint, ttl=30) as node:
        node.start()
        _count(node, range(20))
        node.register(b"first")
        mark = len(node.ear.events)
        server.restart(wipe=True)
        assert node.ear.hears(StoreSnapshot, mark) == StoreSnapshot((), wide=False, forgot=True)
        # The lease is gone with the rest; a new one is taken for the next leased put.
        node.register(b"again")
        node.ear.hears(LeaseLost, mark)
        node.until(lambda values: values == {node.key: b"again"})
        mark = len(node.ear.events)
        _count(node, range(5))
        node.ear.has("round", b"4")
        assert StoreSnapshot not in [type(event) for event in node.ear.events[mark:]]


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "a look in between"])
def test_it_is_noticed_too_when_others_wrote_more_than_before(
    new_etcd: NewEtcd, wide: bool
) -> None:
    server = new_etcd()
    with _behind(server) as (network, node, other):
        node.start()
        node.register(b"first")
        mark = len(node.ear.events)
        network.cut()
        node.ear.hears(Lost)
        if wide:
            node.store.look(wide=True, without=frozenset())
        server.restart(wipe=True)
        # The revision is far beyond the one that the node has seen when it comes back.
        _count(other, range(50))
        network.heal()
        snapshot = node.ear.hears(StoreSnapshot, mark)
        assert (snapshot.forgot, snapshot.wide) == (True, wide)
        assert [entry.value for entry in snapshot.entries] == [b"49"]


def test_a_restart_that_keeps_the_data_is_no_loss_of_memory(new_etcd: NewEtcd) -> None:
    server = new_etcd()
    with Listening(server.endpoint) as node:
        node.start()
        node.register(b"first")
        for _ in range(2):
            mark = len(node.ear.events)
            server.restart()
            node.ear.hears(Found, mark)
        node.put("round", b"on")
        node.until(lambda values: values == {node.key: b"first", "round": b"on"})
        assert (node.ear.was_forgotten(), node.ear.count(LeaseLost)) == (False, 0)


# ---------------------------------------------------------------- silence and doubt


def test_a_lease_ends_by_our_own_clock_when_the_store_is_silent(etcd: EtcdServer) -> None:
    with Proxy(etcd.endpoint) as network, Listening(network.endpoint, ttl=3) as node:
        node.start()
        node.register()
        network.mute = True
        node.ear.hears(LeaseLost)
        with pytest.raises(StoreUnavailable):
            node.put("job", b"unanswered")
        network.cut()
        network.heal()
        node.ear.hears(Found)
        assert node.store.read("nodes/") == ()


def test_a_write_whose_answer_was_lost_is_known_to_have_taken_place(etcd: EtcdServer) -> None:
    with _behind(etcd) as (network, node, other):
        node.put("job", b"1")
        before = node.store.read("job")[0].version
        network.mute = True

        def lose_the_answer() -> None:
            while other.store.read("job")[0].value != b"2":
                pass
            network.cut()
            network.heal()

        with ThreadPoolExecutor() as beside:
            beside.submit(lose_the_answer)
            seal = Transaction((Expect("job", before),), (Put("job", b"2"),), ("round",))
            assert node.store.apply(seal)
        # Once it is known, the same transaction is one that comes too late.
        assert not node.store.apply(seal)
        assert [entry.value for entry in node.store.read("")] == [b"2"]


def test_a_write_that_another_made_instead_is_not_taken_for_ours(etcd: EtcdServer) -> None:
    with _behind(etcd) as (network, node, other):
        node.put("events/1", b"")
        network.cut()

        def write_first() -> None:
            other.put("round", b"theirs")
            network.heal()

        with ThreadPoolExecutor() as beside:
            beside.submit(write_first)
            assert not node.put("round", b"ours", ABSENT)


def test_a_paused_etcd_is_lost_and_found(new_etcd: NewEtcd) -> None:
    server = new_etcd()
    with Listening(server.endpoint) as node:
        node.start()
        mark = len(node.ear.events)
        server.pause()
        node.ear.hears(Lost, mark)
        server.unpause()
        node.ear.hears(Found, mark)
        node.put("job", b"on")
        node.ear.has("job", b"on")


def test_a_connection_that_leads_nowhere_is_given_up_for_a_new_one(etcd: EtcdServer) -> None:
    with DesertedProxy(etcd.endpoint) as network, Listening(network.endpoint, ttl=5) as node:
        node.start()
        node.register(b"first")
        mark = len(node.ear.events)
        network.desert()
        # The connection stays up and answers pings; only calls show that nobody is there.
        _insist(node, b"on")
        node.ear.hears(Found, mark)
        node.ear.has("round", b"on")


# ---------------------------------------------------------------- three members


def test_three_members_go_on_without_their_leader(etcd_cluster: EtcdCluster) -> None:
    with Listening(etcd_cluster.endpoint) as node:
        node.start()
        node.register(b"me")
        mark = len(node.ear.events)
        written = _count(node, range(20))
        etcd_cluster.leader().kill()
        # Writes fail while there is no leader; each that is done is done once.
        for number in range(20, 40):
            written.append(str(number).encode())
            _insist(node, written[-1])
        node.ear.has("round", b"39")
        assert node.written("round", mark) == written
        assert node.values()[node.key] == b"me"


def test_a_member_without_a_majority_is_lost_until_it_has_one(etcd_cluster: EtcdCluster) -> None:
    alone, *others = etcd_cluster.members
    with Listening(alone.endpoint) as node:
        node.start()
        mark = len(node.ear.events)
        for member in others:
            member.pause()
        # Its connection is whole; it says itself that it has no leader.
        node.ear.hears(Lost, mark)
        with pytest.raises(StoreUnavailable):
            node.put("round", b"never agreed")
        for member in others:
            member.unpause()
        node.ear.hears(Found, mark)
        _insist(node, b"on")
        node.ear.has("round", b"on")
