"""What may befall an embedded store and its clients, beyond the contract that all stores share."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest

from elastic_runtime import __version__
from elastic_runtime.config import Endpoint
from elastic_runtime.defaults import STORE_ANSWER
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    Found,
    LeaseLost,
    Lost,
    Refused,
    Snapshot,
)
from elastic_runtime.rendezvous.stores.embedded import store_server as server
from elastic_runtime.rendezvous.stores.embedded import store_sessions
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from elastic_runtime.rendezvous.stores.embedded.store_hosting import Hosting, listening_address
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.system.listening import listen
from tests import processes
from tests.conformance.listening import Ear
from tests.conformance.store_contract import Node
from tests.etcd_server import free_port
from tests.integration.embedded.hosting import HostProcess
from tests.strangers import GARBAGE

OpenAt = Callable[..., Node]


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    host = HostProcess()
    yield host
    host.kill()


@pytest.fixture
def here() -> Iterator[StoreServer]:
    hosted = StoreServer(listen("127.0.0.1"))
    yield hosted
    hosted.close()


@pytest.fixture
def open_at(run_id: str) -> Iterator[OpenAt]:
    with ExitStack() as stack:

        def open_it(port: int, name: str, ttl: float = 5.0, may_host: bool = False) -> Node:
            endpoint = Endpoint("c10d", (f"127.0.0.1:{port}",), hosted_here=not may_host)
            store = EmbeddedStore(endpoint, run_id, ttl)
            stack.callback(store.close)
            node = Node(f"nodes/{name}", store, Ear())
            store.start(node.key, node.ear)
            return node

        yield open_it


def hosting(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if isinstance(node.store, EmbeddedStore) and node.store.hosting]


# ---------------------------------------------------------------- who hosts


def test_of_several_on_one_machine_one_becomes_the_host(open_at: OpenAt) -> None:
    port = free_port()
    nodes = [open_at(port, f"n{i}", may_host=True) for i in range(5)]
    for node in nodes:
        node.ear.hears(Snapshot)
    assert len(hosting(nodes)) == 1
    nodes[0].put("job", b"j")
    for node in nodes:
        node.ear.has("job", b"j")


def test_when_the_host_dies_another_takes_over_with_an_empty_store(open_at: OpenAt) -> None:
    dying = HostProcess(free_port())
    nodes = [open_at(dying.port, f"n{i}", may_host=True) for i in range(3)]
    for node in nodes:
        node.ear.hears(Snapshot)
        node.register()
    assert hosting(nodes) == []
    version = nodes[0].entry(nodes[0].key).version
    dying.kill()
    for node in nodes:
        node.ear.until(node.ear.was_forgotten, "that it forgot")
        node.ear.hears(Lost)
        node.ear.hears(Found)
    assert len(hosting(nodes)) == 1
    for node in nodes:
        node.register(b"again")
    assert len(nodes[0].store.read("")) == 3
    # What somebody remembers of the former store can be no condition that holds in this one.
    assert not nodes[0].put(nodes[0].key, b"late", version)


def test_of_three_that_lose_sight_of_a_host_two_go_on_and_it_comes_to_them(
    open_at: OpenAt,
) -> None:
    stopped = HostProcess(free_port())
    try:
        nodes = [open_at(stopped.port, f"n{i}", may_host=True) for i in range(2)]
        for node in nodes:
            node.ear.hears(Snapshot)
            node.register()
        _wait_for_voters(nodes, 3)
        stopped.pause()
        for node in nodes:
            node.ear.until(node.ear.was_forgotten, "another host", 60.0)
        assert len(hosting(nodes)) == 1
        nodes[0].put("job", b"here")
        stopped.unpause()
        # Who comes to the former host is sent on: it takes no more writes.
        late = open_at(stopped.port, "late")
        late.ear.until(lambda: "job" in late.ear.known, "the store of the other host", 60.0)
        assert late.put("round", b"r", 0)
        nodes[0].ear.has("round", b"r")
    finally:
        stopped.kill()


def test_of_two_the_one_that_loses_sight_of_the_host_waits(open_at: OpenAt) -> None:
    stopped = HostProcess(free_port())
    try:
        node = open_at(stopped.port, "n", may_host=True)
        node.ear.hears(Snapshot)
        node.register()
        _wait_for_voters([node], 2)
        stopped.pause()
        node.ear.hears(Lost)
        # It has given itself its vote, under the second term, and that was not enough.
        processes.wait_for(lambda: hosting_of(node)._obeyed > 1, 60.0, "it stands for host")
        stopped.unpause()
        node.ear.hears(Found)
        node.ear.has(node.key)
        assert not node.ear.was_forgotten()
    finally:
        stopped.kill()


def test_a_store_that_is_founded_anew_at_the_endpoint_yields_to_the_one_that_goes_on(
    open_at: OpenAt,
) -> None:
    """The others took over on other machines; then a node starts where the first host was."""
    dying = HostProcess(free_port())
    nodes = [open_at(dying.port, f"n{i}", may_host=True) for i in range(2)]
    for node in nodes:
        node.ear.hears(Snapshot)
        hosting_of(node)._endpoint_here = None  # as if the endpoint were on another machine
    _wait_for_voters(nodes, 3)
    dying.kill()
    for node in nodes:
        node.ear.until(node.ear.was_forgotten, "another host")
    nodes[0].put("job", b"j")
    again = HostProcess(dying.port)
    try:
        late = open_at(dying.port, "late")
        late.ear.until(lambda: "job" in late.ear.known, "the store of the job", 60.0)
    finally:
        again.kill()


def hosting_of(node: Node) -> Hosting:
    assert isinstance(node.store, EmbeddedStore)
    return node.store._hosting


def _wait_for_voters(nodes: list[Node], count: int) -> None:
    def known() -> bool:
        lists = [hosting_of(node)._voters for node in nodes]
        return all(one is not None and len(one.now) == count and not one.before for one in lists)

    processes.wait_for(known, 20.0, "all know who votes")


def test_who_must_not_host_waits_for_the_host_to_come_back(open_at: OpenAt) -> None:
    port = free_port()
    node = open_at(port, "n")
    node.ear.hears(Lost)
    host = HostProcess(port)
    try:
        node.ear.hears(Snapshot)
        assert not node.ear.last_snapshot().forgot
        node.register()
    finally:
        host.kill()


# ---------------------------------------------------------------- silence, cuts, stops


def test_a_stopped_host_holds_nobody_for_ever(host: HostProcess, open_at: OpenAt) -> None:
    node, other, leaving = (open_at(host.port, name) for name in ("a", "b", "c"))
    for each in (node, other, leaving):
        each.ear.hears(Snapshot)
        each.register()
    host.pause()
    with pytest.raises(StoreUnavailable):
        node.put("job", b"j")
    node.ear.hears(Lost)
    begun = time.monotonic()
    leaving.store.close()
    assert time.monotonic() - begun < STORE_ANSWER
    with pytest.raises(StoreUnavailable):
        node.put("job", b"j")
    host.unpause()
    for each in (node, other):
        each.ear.hears(Found)
        each.ear.has(each.key)
        assert not each.ear.was_forgotten()
    # Whoever was silent only because the host was is not blamed.
    assert other.ear.count(LeaseLost) == 0
    node.put("job", b"k")
    other.ear.has("job", b"k")


def test_a_connection_that_is_lost_costs_no_lease(here: StoreServer, open_at: OpenAt) -> None:
    other = open_at(here.port, "other")
    other.ear.hears(Snapshot)
    with _Relay(here.port) as relay:
        node = open_at(relay.port, "a", ttl=60.0)
        node.ear.hears(Snapshot)
        node.register()
        relay.cut()
        node.ear.hears(Found)
        other.put("job", b"meanwhile")
        node.ear.has("job", b"meanwhile")
        node.ear.has(node.key, b"here")
        assert (node.ear.count(LeaseLost), node.ear.was_forgotten()) == (0, False)
        assert node.put(node.key, b"there", node.entry(node.key).version, leased=True)


def test_who_hears_nothing_ends_the_connection(open_at: OpenAt) -> None:
    """A machine that is gone refuses nothing, and no packet of it comes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = open_at(silent.getsockname()[1], "a")
        node.ear.hears(Lost)
        (lost,) = (event for event in node.ear.events if isinstance(event, Lost))
        assert f"no answer within {STORE_ANSWER:g} s" in lost.why


class _Relay:
    """Hands connections on, until they are cut; new ones are handed on again."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[socket.socket] = []

    def __enter__(self) -> _Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._pairs += [near, far]
            for one, two in ((near, far), (far, near)):
                threading.Thread(target=self._hand_on, args=(one, two), daemon=True).start()

    @staticmethod
    def _hand_on(one: socket.socket, two: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                two.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        pairs, self._pairs = self._pairs, []
        for one in pairs:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


# ---------------------------------------------------------------- who is no client, or no host


@pytest.mark.parametrize("said", GARBAGE, ids=lambda said: f"{said[:8]!r}")
def test_strangers_are_told_what_is_here_and_stop_nothing(
    here: StoreServer, open_at: OpenAt, said: bytes
) -> None:
    node = open_at(here.port, "a")
    node.ear.hears(Snapshot)
    with socket.create_connection(("127.0.0.1", here.port), timeout=20.0) as line:
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
        struct.pack(">I", wire.MOST + 1),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 3) + b"\xff{}",
        struct.pack(">I", 200_000) + b"[" * 200_000,
        wire.frame({"protocol": wire.PROTOCOL, "run": 1}),
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
    node.ear.hears(Snapshot)
    for greeting in (b"", _hello()):
        with socket.create_connection(("127.0.0.1", here.port), timeout=20.0) as line:
            line.sendall(wire.PREFACE + greeting + frame)
            line.shutdown(socket.SHUT_WR)
            while line.recv(65536):
                pass
    node.put("job", b"j")
    node.ear.has("job", b"j")
    assert node.ear.count(Lost) == 0


def test_a_store_of_another_version_is_named(here: StoreServer, open_at: OpenAt) -> None:
    with socket.create_connection(("127.0.0.1", here.port), timeout=20.0) as line:
        line.sendall(wire.PREFACE + _hello(protocol=wire.PROTOCOL + 1, release="9.9"))
        heard = b"".join(iter(lambda: line.recv(65536), b""))
    told = json.loads(heard[4:])["refused"]
    assert f"elastic-runtime {__version__}" in told
    assert "this node 2 (9.9): install the same version" in told


def test_who_is_refused_hears_why_and_asks_no_more(
    open_at: OpenAt, monkeypatch: pytest.MonkeyPatch, here: StoreServer
) -> None:
    monkeypatch.setattr(wire, "PROTOCOL", 0)
    # The server is in this process as well, so it is made to expect what nobody says.
    monkeypatch.setattr(server.wire, "PREFACE", wire.PREFACE)
    hello = EmbeddedStore._hello
    monkeypatch.setattr(EmbeddedStore, "_hello", lambda self: {**hello(self), "protocol": -1})
    node = open_at(here.port, "a")
    node.ear.hears(Refused)
    (refused,) = (event for event in node.ear.events if isinstance(event, Refused))
    assert "install the same version on all nodes" in refused.why


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
def test_whoever_listens_there_and_is_no_store_is_told_as_that(
    open_at: OpenAt, answer: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            while True:
                try:
                    line, _ = other.accept()
                except OSError:
                    return
                with line:
                    line.recv(65536)
                    line.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        node = open_at(other.getsockname()[1], "a")
        node.ear.hears(Lost)
        (lost,) = (event for event in node.ear.events if isinstance(event, Lost))
        assert "no store of this version of elastic-runtime" in lost.why
        other.shutdown(socket.SHUT_RDWR)


def test_who_reads_nothing_is_dropped_and_the_others_hear_all(
    here: StoreServer, open_at: OpenAt, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_UNREAD", 100_000)
    node = open_at(here.port, "a")
    node.ear.hears(Snapshot)
    with socket.create_connection(("127.0.0.1", here.port), timeout=20.0) as deaf:
        deaf.sendall(wire.PREFACE + _hello(run=run_id))
        assert deaf.recv(1)
        for i in range(200):  # more than the system keeps for whoever does not read
            node.put("switch", b"%05d" % i + bytes(100_000))
        processes.wait_for(lambda: _ends(deaf), 20.0, "the connection ends")
    assert sum(isinstance(event, Changed) for event in node.ear.events) == 200


def _ends(line: socket.socket) -> bool:
    try:
        return not line.recv(2**20)
    except OSError:
        return True


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
    hello = {"protocol": wire.PROTOCOL, "release": "0", "run": "r", "session": "s", "ttl": 5.0}
    follows = {"own": "nodes/x", "wide": False, "without": [], "term": 0, "host": ""}
    return wire.frame({**hello, **follows, **other})


# ---------------------------------------------------------------- runs, ends


def test_runs_do_not_see_each_other(host: HostProcess, open_at: OpenAt, run_id: str) -> None:
    node = open_at(host.port, "a")
    node.ear.hears(Snapshot)
    node.put("job", b"j")
    endpoint = Endpoint("c10d", (f"127.0.0.1:{host.port}",), hosted_here=True)
    other = EmbeddedStore(endpoint, "another-run", 5.0)
    other.start("nodes/x", Ear())
    assert other.read("") == ()
    assert run_id in other.runs()
    assert "another-run" not in other.runs()
    other.close()


def test_threads_and_files_end_with_their_store(host: HostProcess, open_at: OpenAt) -> None:
    before, files = set(threading.enumerate()), set(os.listdir("/proc/self/fd"))
    node = open_at(host.port, "a")
    hosting = open_at(free_port(), "b", may_host=True)
    for one in (node, hosting):
        one.ear.hears(Snapshot)
        one.register()
        one.store.close()
    assert set(threading.enumerate()) - before == set()
    processes.wait_for(
        lambda: len(os.listdir("/proc/self/fd")) <= len(files), 5.0, "its files are closed"
    )


_ENDS = """
import sys
from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
store = EmbeddedStore(Endpoint("c10d", (sys.argv[1],), hosted_here=True), "run", 5.0)
store.start("nodes/a", lambda event: None)
print("begun", flush=True)
sys.stdin.read(1)
"""


def test_a_process_may_end_while_it_connects(host: HostProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (silent.getsockname()[1], host.port, free_port()):
            done = subprocess.run(
                [sys.executable, "-c", _ENDS, f"127.0.0.1:{port}"],
                input="x",
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")


@pytest.mark.parametrize(
    ("host_name", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("192.0.2.1", None),  # reserved for documentation: never of this machine
        ("127.0.0.2", "127.0.0.2"),
        ("0.0.0.0", ""),
        ("localhost", "127.0.0.1"),
    ],
)
def test_where_to_listen(host_name: str, address: str | None) -> None:
    assert listening_address(host_name, 1234) == address
