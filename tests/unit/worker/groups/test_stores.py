"""The store that outlives its host, and the clients of the agents' stores."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

from elastic_runtime.worker.groups.outliving_store import OutlivingStore, RoundStore
from elastic_runtime.worker.groups.rebuild import RebuiltRanks
from elastic_runtime.worker.groups.round_ranks import Interrupted
from elastic_runtime.worker.groups.store_clients import Stores
from tests.unit.worker.groups.roads import place, serve

if TYPE_CHECKING:
    from collections.abc import Iterator


_LONG = timedelta(seconds=50)
_SHORT = timedelta(milliseconds=20)


def _leading_to(*rounds: RoundStore) -> OutlivingStore:
    store = OutlivingStore()
    store.current = rounds[-1]
    return store


@pytest.fixture
def later() -> Iterator[list[threading.Thread]]:
    """Threads of a test that are joined at its end."""
    started: list[threading.Thread] = []
    yield started
    for one in started:
        one.join(50)


def test_torch_reads_and_writes_through_it_what_is_the_present_rounds() -> None:
    servers = serve(), serve()
    first, second = (RoundStore(dist.PrefixStore(f"r{n}", s)) for n, s in enumerate(servers))
    store = _leading_to(first)
    # As torch does, through a store that adds a prefix and calls it from C++.
    asked = dist.PrefixStore("gloo", store)
    asked.set("key", "one")
    assert servers[0].get("r0/gloo/key") == b"one"
    del servers  # the host of the first one ends with it, or is lost
    store.current = second
    assert not asked.check(["key"])
    assert asked.add("count", 2) == 2
    assert asked.compare_set("key", "", "two") == b"two"
    asked.append("key", b"!")
    assert asked.multi_get(["key", "count"]) == [b"two!", b"2"]
    asked.multi_set(["a", "b"], [b"1", b"2"])
    asked.wait(["a", "b"], _LONG)
    assert asked.get("b") == b"2"
    assert asked.delete_key("b")
    assert second.store.num_keys() >= 3


def test_what_a_peer_writes_ends_a_wait(later: list[threading.Thread]) -> None:
    server = serve()
    store = _leading_to(RoundStore(server))
    later.append(threading.Thread(target=server.set, args=("key", "value")))
    later[0].start()
    assert store.get("key") == b"value"


def test_the_end_of_a_round_ends_a_wait_and_all_after_it(later: list[threading.Thread]) -> None:
    now = RoundStore(serve())
    store = _leading_to(now)
    later.append(threading.Thread(target=now.over.set))
    began = time.monotonic()
    later[0].start()
    with pytest.raises(Interrupted):
        store.wait(["what nobody writes"], _LONG)
    assert time.monotonic() < began + _LONG.total_seconds()
    for use in (lambda: store.set("key", "value"), lambda: store.check(["key"])):
        with pytest.raises(Interrupted):
            use()
    assert now.store.num_keys() == serve().num_keys(), "nothing was written"


def test_a_peer_that_writes_nothing_is_an_error_of_the_store() -> None:
    store = _leading_to(RoundStore(serve()))
    store.set_timeout(_SHORT)
    for wait in (lambda: store.get("key"), lambda: store.wait(["key"], _SHORT)):
        with pytest.raises(dist.DistStoreError, match="no rank has written key"):
            wait()


def test_a_thread_that_belongs_to_a_round_stays_in_it() -> None:
    servers = serve(), serve()
    first, second = RoundStore(servers[0]), RoundStore(servers[1])
    store = _leading_to(first, second)
    with store.bound(first):
        store.set("key", "of the first")
        first.over.set()
        with pytest.raises(Interrupted):
            store.set("late", "value")
    store.set("key", "of the second")
    assert [server.get("key") for server in servers] == [b"of the first", b"of the second"]
    assert not servers[1].check(["late"])


def test_before_a_round_there_is_nothing_to_ask() -> None:
    with pytest.raises(Interrupted):
        OutlivingStore().get("key")


def test_what_ranks_tell_each_other_is_seen_while_they_connect() -> None:
    now = RoundStore(serve())
    store = _leading_to(now)
    store.set("mine", b"here")
    now.store.set("theirs", b"there")
    assert store.get("theirs") == b"there"
    assert now.take_seen() == [b"here", b"there"]
    store.set("of the script", b"more")
    assert now.take_seen() == []


# The clients of the agents' stores, as a worker keeps them from round to round


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_client_is_kept_while_its_store_may_be_used() -> None:
    server, stores = serve(), Stores()
    first = stores.client("127.0.0.1", server.port)
    stores.keep([("127.0.0.1", server.port)])
    assert stores.client("127.0.0.1", server.port) is first
    first.store.set("key", "value")
    assert server.get("key") == b"value"


def test_who_connects_to_a_store_that_never_comes_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(RuntimeError, match=f"no store listens at 127.0.0.1:{port}"):
        Stores().client("127.0.0.1", port, timedelta(seconds=0.5))
    assert capfd.readouterr() == ("", "")


def test_clients_of_nodes_that_are_gone_do_not_pile_up() -> None:
    stores = Stores()
    servers = [serve() for _ in range(5)]
    before = _descriptors()
    for server in servers:
        stores.client("127.0.0.1", server.port)
        stores.keep([("127.0.0.1", server.port)])
    # The servers, in this process too, have an end of each connection as well.
    assert _descriptors() - before <= 1 + len(servers)


def test_a_store_that_is_connected_while_the_ranks_are_is_none_of_their_sockets() -> None:
    server, other, stores = serve(), serve(), Stores()
    mine = RebuiltRanks(place(server.port), stores)
    with socket.create_server(("127.0.0.1", 0)) as peer, socket.socket() as line:

        def make() -> list[bytes]:
            stores.client("127.0.0.1", other.port)
            line.connect(peer.getsockname())
            port = peer.getsockname()[1]
            listens = struct.pack("=H", socket.AF_INET) + struct.pack("!H4B", port, 127, 0, 0, 1)
            return [b"what gloo says besides " + listens + bytes(8)]

        mine._build_gloo(make)
        mine.interrupt()
        assert line.recv(1) == b"", "what belongs to the group is cut"
    client = stores.client("127.0.0.1", other.port)
    assert {one.port for one in client.sockets} == {other.port}
    assert not client.sockets & mine._sockets, "it would be cut with the group"
