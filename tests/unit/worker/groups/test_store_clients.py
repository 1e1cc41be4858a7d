"""The clients of the agents' stores, as a worker keeps them from round to round."""

from __future__ import annotations

import os
import socket
import struct
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from elastic_runtime.worker.groups.rebuild import RebuiltRanks
from elastic_runtime.worker.groups.round_ranks import RankInRound
from elastic_runtime.worker.groups.store_clients import Stores


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _serve() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_client_is_kept_while_its_store_may_be_used() -> None:
    server, stores = _serve(), Stores()
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
    servers = [_serve() for _ in range(5)]
    before = _descriptors()
    for server in servers:
        stores.client("127.0.0.1", server.port)
        stores.keep([("127.0.0.1", server.port)])
    # The servers, in this process too, have an end of each connection as well.
    assert _descriptors() - before <= 1 + len(servers)


def test_a_store_that_is_connected_while_the_ranks_are_is_none_of_their_sockets() -> None:
    server, other, stores = _serve(), _serve(), Stores()
    mine = RebuiltRanks(RankInRound(1, 0, 1, "127.0.0.1", server.port, "r1"), stores)
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
