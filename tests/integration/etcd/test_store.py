"""The store on a healthy etcd: transactions, leases, and what is heard of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Expect,
    LeaseLost,
    Put,
    StoreSnapshot,
    Transaction,
)
from tests.etcd_server import etcdctl
from tests.integration.etcd.listening import TIMEOUT, Listening

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd


# ---------------------------------------------------------------- transactions


def test_a_key_is_created_once_and_updated_only_at_its_version(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as node:
        assert node.create("job", b"1")
        assert not node.create("job", b"2")
        (entry,) = node.store.read("job")
        update = Transaction((Expect("job", entry.version),), (Put("job", b"3"),))
        assert node.store.apply(update)
        assert not node.store.apply(update)
        (now,) = node.store.read("")
        assert (now.key, now.value, now.created) == ("job", b"3", entry.created)
        assert now.version > entry.version


def test_all_conditions_must_hold(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as node:
        node.put("job", b"1")
        both = (Expect("job", node.store.read("job")[0].version), Expect("round", 7))
        assert not node.store.apply(Transaction(both, (Put("job", b"2"),)))
        assert node.store.read("")[0].value == b"1"


def test_two_stores_race_for_each_version(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as one, Listening(etcd.endpoint, one.run_id) as two:
        one.put("round", b"0")
        won: dict[str, list[int]] = {"one": [], "two": []}

        def race(name: str, node: Listening) -> None:
            while True:
                (entry,) = node.store.read("round")
                number = int(entry.value) + 1
                if number > 40:
                    return
                put = Put("round", str(number).encode())
                if node.store.apply(Transaction((Expect("round", entry.version),), (put,))):
                    won[name].append(number)

        threads = [
            threading.Thread(target=race, args=arguments)
            for arguments in (("one", one), ("two", two), ("two", two))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert sorted(won["one"] + won["two"]) == list(range(1, 41))


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


def test_a_narrow_view_has_the_common_keys_the_own_and_the_oldest(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint, node="own") as node:
        for key in ("nodes/z", "nodes/a", "events/01", "job", "round", "outcome", "switch"):
            node.put(key, key.encode())
        first = node.start()
        shown = ["nodes/z", "job", "round", "outcome", "switch"]
        assert [entry.key for entry in first.entries] == shown
        assert not first.wide
        assert not first.forgot
        node.put("nodes/a", b"unheard")
        node.put("events/02", b"unheard")
        for key in shown:
            node.put(key, b"new")
        node.register(b"own")
        node.until(lambda values: values == {**dict.fromkeys(shown, b"new"), "nodes/own": b"own"})
        assert b"unheard" not in node.written("nodes/a") + node.written("events/02")


def test_a_wide_view_has_all_nodes(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint, node="own") as node:
        for key in ("nodes/b", "nodes/a", "events/01", "job"):
            node.put(key, b"")
        node.start()
        mark = node.mark()
        node.store.look(wide=True, without=frozenset())
        wide = node.next(StoreSnapshot, mark, wide=True)
        assert [entry.key for entry in wide.entries] == ["nodes/b", "nodes/a", "job"]
        node.put("nodes/c", b"new")
        node.until(lambda values: values.get("nodes/c") == b"new")


def test_a_wide_view_sees_a_transaction_in_one_piece(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as node:
        node.put("nodes/a", b"")
        node.start()
        node.store.look(wide=True, without=frozenset())
        node.next(StoreSnapshot, wide=True)
        node.store.apply(Transaction(puts=(Put("round", b"1"),), deletes=("nodes/a",)))
        change = node.next(Changed)
        assert ([e.key for e in change.puts], change.deletes) == (["round"], ("nodes/a",))


def test_nodes_known_to_be_dead_are_not_the_oldest(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as node:
        for key in ("nodes/1", "nodes/2", "nodes/3"):
            node.put(key, b"")
        assert [entry.key for entry in node.start().entries] == ["nodes/1"]
        mark = node.mark()
        node.store.look(wide=False, without=frozenset({"nodes/1", "nodes/2"}))
        assert [entry.key for entry in node.next(StoreSnapshot, mark).entries] == ["nodes/3"]


def test_when_the_oldest_vanishes_the_next_one_is_followed(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint, node="own") as node:
        for key in ("nodes/1", "nodes/2"):
            node.put(key, b"")
        node.start()
        node.register()
        node.until(lambda values: "nodes/own" in values)
        mark = node.mark()
        node.store.apply(Transaction(deletes=("nodes/1",)))
        change = node.next(Changed, mark)
        assert [entry.key for entry in change.puts] == ["nodes/2"]
        assert change.deletes == ("nodes/1",)
        node.put("nodes/2", b"heard")
        node.until(lambda values: values.get("nodes/2") == b"heard")


def test_who_comes_first_learns_of_those_before_it_when_it_registers(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint, node="own") as node:
        assert node.start().entries == ()
        node.put("nodes/other", b"")
        mark = node.mark()
        node.register()
        shown = node.next(StoreSnapshot, mark).entries
        assert [entry.key for entry in shown] == ["nodes/other", "nodes/own"]


def test_every_change_comes_once_and_in_order(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as writer, Listening(etcd.endpoint, writer.run_id) as reader:
        reader.start()
        for number in range(200):
            writer.put("round", str(number).encode())
        reader.until(lambda values: values.get("round") == b"199")
        assert reader.written("round") == [str(number).encode() for number in range(200)]


def test_another_life_gives_the_old_key_up(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint, node="old") as node, Listening(etcd.endpoint, node.run_id) as two:
        node.start()
        node.register()
        two.start()
        two.until(lambda values: "nodes/old" in values)
        mark = node.mark()
        node.store.follow("nodes/new")
        node.next(StoreSnapshot, mark)
        two.until(lambda values: "nodes/old" not in values)
        assert node.create("nodes/new", b"again", leased=True)
        node.until(lambda values: values.get("nodes/new") == b"again")


# ---------------------------------------------------------------- leases


def test_closing_takes_leased_keys_away_and_leaves_the_others(etcd: EtcdServer) -> None:
    with Listening(etcd.endpoint) as watcher:
        watcher.start()
        node = Listening(etcd.endpoint, watcher.run_id)
        node.register()
        node.put("job", b"stays")
        node.put("switch", b"goes", leased=True)
        node.put("outcome", b"", leased=True)
        node.put("outcome", b"taken off the lease")
        assert node.store.granted_ttl >= 60
        node.store.close()
        node.store.close()
        assert {entry.key for entry in watcher.store.read("")} == {"job", "outcome"}
        watcher.until(lambda values: "switch" not in values and "job" in values)


def test_a_closed_store_answers_no_more(etcd: EtcdServer) -> None:
    node = Listening(etcd.endpoint)
    node.put("job", b"")
    node.store.close()
    with pytest.raises(StoreUnavailable):
        node.put("job", b"")


def test_a_beating_loop_keeps_its_lease_and_a_silent_one_loses_it(etcd: EtcdServer) -> None:
    with (
        Listening(etcd.endpoint) as watcher,
        Listening(etcd.endpoint, watcher.run_id, "lives", ttl=3) as lives,
        Listening(etcd.endpoint, watcher.run_id, "hangs", ttl=3) as hangs,
    ):
        watcher.start()
        watcher.store.look(wide=True, without=frozenset())
        over = threading.Event()

        def main_loop() -> None:
            while not over.wait(0.1):
                lives.store.beat()

        loop = threading.Thread(target=main_loop)
        loop.start()
        try:
            for node in (lives, hangs):
                node.start()
                node.register()
            watcher.until(lambda values: {"nodes/lives", "nodes/hangs"} <= set(values))
            watcher.until(lambda values: "nodes/hangs" not in values, "the silent one's end")
            hangs.next(LeaseLost)
            assert "nodes/lives" in watcher.values()
            assert not any(isinstance(event, LeaseLost) for event in lives.events)
            # Once its loop turns again, life goes on with a new lease.
            hangs.store.beat()
            hangs.register(b"back")
            watcher.until(lambda values: values.get("nodes/hangs") == b"back")
        finally:
            over.set()
            loop.join()


HOLDER = """
import sys, threading
from tests.integration.etcd.listening import Listening
node = Listening(sys.argv[1], sys.argv[2], "holder", ttl=3)
node.register()
print("registered", flush=True)
while not threading.Event().wait(0.1):
    node.store.beat()
"""


def test_the_keys_of_a_killed_holder_vanish(
    etcd: EtcdServer, request: pytest.FixtureRequest
) -> None:
    root: Path = request.config.rootpath
    with Listening(etcd.endpoint) as watcher:
        watcher.start()
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, etcd.endpoint, watcher.run_id],
            cwd=root,
            stdout=subprocess.PIPE,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"registered\n"
            watcher.store.look(wide=True, without=frozenset())
            watcher.until(lambda values: "nodes/holder" in values)
            os.kill(holder.pid, signal.SIGKILL)
            watcher.until(lambda values: "nodes/holder" not in values)
        finally:
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
