"""Clients that are no nodes of the job, and servers that are no store."""

from __future__ import annotations

import json
import resource
import socket
import struct
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from elastic_runtime import __version__
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import Changed, Lost, Refused
from elastic_runtime.rendezvous.stores.embedded import store_server as server
from elastic_runtime.rendezvous.stores.embedded import store_sessions
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from tests import processes
from tests.integration.embedded.hosting import HostProcess
from tests.strangers import GARBAGE, speaking

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
    from tests.integration.embedded.conftest import OpenAt


@pytest.mark.parametrize("said", GARBAGE, ids=lambda said: f"{said[:8]!r}")
def test_strangers_are_told_what_is_here_and_stop_nothing(
    here: StoreServer, open_at: OpenAt, said: bytes
) -> None:
    node = open_at(here.port, "a")
    with socket.create_connection(("127.0.0.1", here.port), timeout=60.0) as line:
        line.sendall(said)
        line.shutdown(socket.SHUT_WR)
        heard = b"".join(iter(lambda: line.recv(65536), b""))
    assert b"this is the store of an elastic-runtime job" in heard
    assert heard.startswith(b"HTTP/1.1 400 ") == said.startswith(b"GET ")
    node.register()


def test_a_client_of_torch_is_not_kept_waiting(here: StoreServer) -> None:
    from torch.distributed import DistError, TCPStore

    with pytest.raises((DistError, RuntimeError)):
        TCPStore("127.0.0.1", here.port, is_master=False, timeout=timedelta(seconds=1))


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">I", wire.MAX_FRAME + 1),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 3) + b"\xff{}",
        struct.pack(">I", 200_000) + b"[" * 200_000,
        wire.frame({"protocol": wire.STORE_PROTOCOL, "run": 1}),
        wire.frame({"do": "apply", "id": 1, "puts": [["k", "v"]]}),
        wire.frame({"do": "burn", "id": 1}),
        wire.frame({"do": "read", "id": "1", "prefix": ""}),
        struct.pack(">I", 100) + b"half",
    ],
    ids=["huge", "list", "no text", "deep", "no hello", "row", "unknown", "number", "half"],
)
def test_a_frame_that_is_none_ends_its_own_connection_only(
    here: StoreServer, open_at: OpenAt, frame: bytes
) -> None:
    node = open_at(here.port, "a")
    for greeting in (b"", _hello()):
        with socket.create_connection(("127.0.0.1", here.port), timeout=60.0) as line:
            line.sendall(wire.PREFACE + greeting + frame)
            line.shutdown(socket.SHUT_WR)
            while line.recv(65536):
                pass
    node.put("job", b"j")
    node.ear.has("job", b"j")
    assert node.ear.count(Lost) == 0


def test_the_first_frame_of_a_stranger_is_a_small_one(
    here: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CLIENT_TIMEOUT", 3600.0)
    with socket.create_connection(("127.0.0.1", here.port), timeout=60.0) as line:
        line.sendall(wire.PREFACE + struct.pack(">I", wire.MOST_HELLO + 1))
        assert line.recv(65536) == b""


def test_a_store_of_another_version_is_named(here: StoreServer, open_at: OpenAt) -> None:
    with socket.create_connection(("127.0.0.1", here.port), timeout=60.0) as line:
        line.sendall(wire.PREFACE + _hello(protocol=wire.STORE_PROTOCOL + 1, release="9.9"))
        heard = b"".join(iter(lambda: line.recv(65536), b""))
    told = json.loads(heard[4:])["refused"]
    assert f"elastic-runtime {__version__}" in told
    assert "this node 2 (9.9): install the same version" in told


def test_who_is_refused_hears_why_and_asks_no_more(
    open_at: OpenAt, monkeypatch: pytest.MonkeyPatch, here: StoreServer
) -> None:
    monkeypatch.setattr(wire, "STORE_PROTOCOL", 0)
    # The server is in this process as well, so it is made to expect what nobody says.
    monkeypatch.setattr(server.wire, "PREFACE", wire.PREFACE)
    hello = EmbeddedStore._hello
    monkeypatch.setattr(EmbeddedStore, "_hello", lambda self: {**hello(self), "protocol": -1})
    node = open_at(here.port, "a", waits=False)
    assert "install the same version on all nodes" in node.ear.hears(Refused).why


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
def test_whoever_listens_there_and_is_no_store_is_told_as_that(
    open_at: OpenAt, answer: bytes
) -> None:
    def serve(line: socket.socket) -> None:
        line.recv(65536)
        line.sendall(answer)

    with speaking(serve) as where:
        node = open_at(int(where.rpartition(":")[2]), "a", waits=False)
        assert "no store of this version of elastic-runtime" in node.ear.hears(Lost).why


def test_who_reads_nothing_is_dropped_and_the_others_hear_all(
    here: StoreServer, open_at: OpenAt, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_UNREAD", 100_000)
    node = open_at(here.port, "a")
    with socket.create_connection(("127.0.0.1", here.port), timeout=60.0) as deaf:
        deaf.sendall(wire.PREFACE + _hello(run=run_id))
        assert deaf.recv(1)
        for i in range(200):  # more than the system keeps for whoever does not read
            node.put("switch", b"%05d" % i + bytes(100_000))
        processes.wait_for(lambda: _ends(deaf), 60.0, "the connection ends")
    assert node.ear.count(Changed) == 200


def _ends(line: socket.socket) -> bool:
    try:
        return not line.recv(2**20)
    except OSError:
        return True


def test_a_host_has_more_clients_than_it_may_open_files_at_first() -> None:
    with HostProcess() as host, ExitStack() as stack:
        _, most = resource.prlimit(host.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(host.pid, resource.RLIMIT_NOFILE, (40, most))
        for number in range(60):
            line = socket.create_connection(("127.0.0.1", host.port), timeout=20.0)
            stack.enter_context(line)
            line.sendall(wire.PREFACE + _hello(session=str(number)))
            assert line.recv(1)


def test_a_store_takes_no_more_than_it_can_hold(
    here: StoreServer, open_at: OpenAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_sessions, "_MOST_STORED", 1000)
    node = open_at(here.port, "a")
    node.put("job", bytes(900))
    with pytest.raises(StoreUnavailable, match="it is full"):
        node.put("round", bytes(200))
    node.delete("job")
    node.put("round", bytes(200))


def _hello(**other: object) -> bytes:
    hello = {"protocol": wire.STORE_PROTOCOL, "release": "0", "run": "r", "session": "s"}
    follows = {"ttl": 5.0, "own": "nodes/x", "wide": False, "without": [], "term": 0, "host": ""}
    return wire.frame({**hello, **follows, **other})
