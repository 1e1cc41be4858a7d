"""The embedded store: where it listens, who connects, what it holds, and its end."""

from __future__ import annotations

import asyncio
import queue
import socket
import struct
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.store_contract import Put, Transaction
from elastic_runtime.rendezvous.stores.embedded import (
    store_connection,
    store_hosting,
    store_sessions,
)
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from elastic_runtime.rendezvous.stores.embedded.event_loop import Loop
from elastic_runtime.rendezvous.stores.embedded.store_connection import (
    HostConnection,
    HostUnreachable,
)
from elastic_runtime.rendezvous.stores.embedded.store_hosting import (
    SeveralMachines,
    listening_address,
)
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.rendezvous.stores.embedded.store_sessions import Session, Sessions
from elastic_runtime.rendezvous.stores.embedded.wire_protocol import WireError
from elastic_runtime.system import threads
from elastic_runtime.system.listening import listen
from tests import processes
from tests.etcd_server import free_port
from tests.unit.clients import everything

if TYPE_CHECKING:
    from collections.abc import Iterator


# ---------------------------------------------------------------- where it listens

_V4, _V6 = socket.AF_INET, socket.AF_INET6
# Reserved for documentation: never of this machine.
_OTHER, _OTHER6 = (_V4, "192.0.2.77"), (_V6, "2001:db8::77")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("192.0.2.77", None),
        ("127.0.0.2", "127.0.0.2"),
        ("0.0.0.0", ""),
        ("localhost", "127.0.0.1"),
        ("a..b", None),
    ],
)
def test_where_to_listen(host: str, address: str | None) -> None:
    assert listening_address(host, 1234) == address


def _named(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[int, str]) -> None:
    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        return [(family, socket.SOCK_STREAM, 6, "", (ip, port)) for family, ip in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_a_name_of_several_machines_is_no_place_for_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_hosting, "_leads_away", lambda ip, family: True)
    _named(monkeypatch, _OTHER, (_V4, "127.0.0.1"))
    with pytest.raises(SeveralMachines, match=r"\(127.0.0.1\) and for others \(192.0.2.77\)"):
        listening_address("job", 1234)
    _named(monkeypatch, _OTHER, _OTHER6)
    assert listening_address("job", 1234) is None


def test_several_addresses_of_this_machine_are_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one to which no way leads, as of IPv6 where machines have none."""
    monkeypatch.setattr(store_hosting, "_leads_away", lambda ip, family: False)
    _named(monkeypatch, (_V4, "127.0.0.1"), (_V4, "127.0.0.2"), _OTHER6)
    assert listening_address("job", 1234) == "127.0.0.1"


# ---------------------------------------------------------------- connecting to it

_HELLO = {
    **{"protocol": wire.STORE_PROTOCOL, "release": "0", "run": "r", "session": "s", "ttl": 5.0},
    **{"own": "nodes/x", "wide": False, "without": [], "term": 0, "host": ""},
}


def test_an_address_that_never_answers_leaves_time_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.2", 0))
        silent.listen(0)
        port = silent.getsockname()[1]
        # Its queue is full with this one, so the system drops whoever else comes.
        stack.enter_context(socket.create_connection(("127.0.0.2", port)))
        server = StoreServer(listen("127.0.0.1", port))
        stack.callback(server.close)

        def look_up(host: str, port: int, flags: int = 0) -> list[Any]:
            return [("127.0.0.2", port), ("127.0.0.1", port)]

        monkeypatch.setattr(store_connection, "_look_up", look_up)

        async def connect() -> str:
            connection = await HostConnection.open(f"host:{port}", _HELLO, 4.0)
            connection.close()
            return connection.store_id

        assert asyncio.run(connect()) == server.store_id


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("host", "that is no host:port"),
        ("host:x", "that is no host:port"),
        ("127.0.0.1:65536", "that is no host:port"),
        ("a..b:1", "'a..b' is no name of a machine"),
    ],
)
def test_what_is_no_address_is_told_as_that(where: str, why: str) -> None:
    with pytest.raises(HostUnreachable) as caught:
        asyncio.run(HostConnection.open(where, _HELLO, 20.0))
    assert str(caught.value).endswith(f"does not answer: {why}")
    assert not caught.value.refused


# ---------------------------------------------------------------- its end

PATIENCE = 60.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    """The loop, which goes on when the server has ended, as where a process has two stores."""
    loop = Loop()
    yield loop
    loop.release()


def _connect(server: StoreServer) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    line.sendall(wire.PREFACE + wire.frame(_HELLO))
    return line


def test_at_its_end_it_hangs_up_and_nobody_takes_that_for_a_crash(loop: Loop) -> None:
    crashes: queue.Queue[threads.Crash] = queue.Queue()
    with ExitStack() as stack:
        stack.callback(threads.watch(crashes.put))
        server = stack.enter_context(closing(StoreServer(listen("127.0.0.1"))))
        line = stack.enter_context(_connect(server))
        assert line.recv(1)  # it is a client by now
        server.close()
        everything(line)
        loop.run(asyncio.sleep(0), PATIENCE)  # what the end has caused has happened as well
    assert crashes.empty()


@pytest.mark.parametrize("turns", range(6))
def test_who_connects_at_the_last_moment_is_not_left_waiting(loop: Loop, turns: int) -> None:
    async def end() -> socket.socket:
        line = _connect(server)
        for _ in range(turns):  # after some of them it has been accepted, and is not served yet
            await asyncio.sleep(0)
        await server._end()
        return line

    with closing(StoreServer(listen("127.0.0.1"))) as server:
        with loop.run(end(), PATIENCE) as line:
            everything(line)


def test_a_closed_store_leaves_nothing_on_the_loop(loop: Loop) -> None:
    endpoint = Endpoint("c10d", (f"127.0.0.1:{free_port()}",))
    store = EmbeddedStore(endpoint, "a run", 5.0, PATIENCE, "127.0.0.1")
    store.start("nodes/x", lambda event: None)
    assert store.read("") == ()
    store.close()
    processes.wait_for(lambda: not asyncio.all_tasks(loop.loop), PATIENCE, "the end of tasks")


def test_work_that_fails_by_a_defect_is_told_to_whoever_watches_threads(loop: Loop) -> None:
    async def fails() -> None:
        raise ZeroDivisionError("on the way")

    told: queue.Queue[threads.Crash] = queue.Queue()
    unwatch = threads.watch(told.put)
    try:
        loop.begin(fails())
        crash = told.get(timeout=60.0)
    finally:
        unwatch()
    assert (crash.thread, crash.error) == ("embedded-store", "ZeroDivisionError: on the way")


# ---------------------------------------------------------------- what it holds


def put(sessions: Sessions, session: Session, value: bytes = b"v") -> wire.Message:
    transaction = Transaction(puts=(Put("job", value),))
    return sessions.answer("apply", wire.of_transaction(transaction), session.store)


def test_a_client_that_comes_back_has_its_session_again() -> None:
    sessions = Sessions()
    first = sessions.open("run", "a", 60.0)
    assert sessions.open("run", "a", 60.0) is first
    assert sessions.open("run", "b", 60.0) is not first
    assert sessions.open("other", "a", 60.0) is not first


def test_runs_see_nothing_of_each_other() -> None:
    sessions = Sessions()
    one, other = sessions.open("run", "a", 60.0), sessions.open("other", "a", 60.0)
    assert put(sessions, one)["ok"]
    assert [len(list(store.read(""))) for store in (one.store, other.store)] == [1, 0]
    assert sessions.answer("runs", {}, other.store) == {"runs": ["run"]}


def test_nothing_is_served_and_nothing_is_lost_while_the_store_pauses() -> None:
    sessions = Sessions()
    one = sessions.open("run", "a", 60.0)
    put(sessions, one)
    sessions.pause("the host is busy")
    assert "the host is busy" in str(put(sessions, one)["error"])
    late = sessions.open("late", "a", 60.0)
    assert "the host is busy" in str(put(sessions, late)["error"])
    sessions.resume()
    assert put(sessions, late)["ok"]
    assert len(list(one.store.read(""))) == 1


def test_a_full_store_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_sessions, "_MOST_STORED", 10)
    sessions = Sessions()
    one, other = sessions.open("run", "a", 60.0), sessions.open("other", "a", 60.0)
    assert put(sessions, one, b"123456")["ok"]
    assert "full" in str(put(sessions, other, b"123456")["error"]), "all runs count"
    assert put(sessions, other, b"1")["ok"]


def test_a_session_without_a_connection_and_a_lease_ends() -> None:
    sessions = Sessions()
    one, connected = sessions.open("run", "a", 60.0), sessions.open("run", "b", 60.0)
    connected.client = object()
    sessions.end_overdue()
    assert sessions.open("run", "a", 60.0) is not one
    assert sessions.open("run", "b", 60.0) is connected


def test_another_request_is_an_error() -> None:
    sessions = Sessions()
    with pytest.raises(wire.WireError, match="'fly'"):
        sessions.answer("fly", {}, sessions.open("run", "a", 60.0).store)


# ---------------------------------------------------------------- what it hears


@pytest.mark.parametrize("value", ["5", None, True, [5.0], 10**400])
def test_what_is_no_number_is_none(value: object) -> None:
    with pytest.raises(WireError, match="'ttl' is"):
        wire.field({"ttl": value}, "ttl", float)


def _read(data: bytes, most: int = 1 << 20) -> wire.Message:
    async def read() -> wire.Message:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        return await asyncio.wait_for(wire.read_frame(reader, most), PATIENCE)

    return asyncio.run(read())


def test_a_frame_may_be_as_large_as_its_reader_allows() -> None:
    assert _read(wire.frame({"a": 1}), 7) == {"a": 1}
    with pytest.raises(WireError, match="a frame of 7 bytes"):
        _read(wire.frame({"a": 1}), 6)
    with pytest.raises(WireError, match="a frame of 4294967295 bytes"):  # it is not waited for
        _read(struct.pack(">I", 2**32 - 1))


def test_a_transaction_that_is_none_is_refused() -> None:
    row = ["job", "", False]
    with pytest.raises(WireError, match="twice"):
        wire.to_transaction({"expects": [], "puts": [row, row], "deletes": []})
