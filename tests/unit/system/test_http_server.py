"""Where a node listens, and the HTTP server for figures and probes; clients mean no good."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.node_address import own_address
from elastic_runtime.system.http_server import Answer, HttpServerThread
from elastic_runtime.system.listening import Where, listen, stop_listening, way_to, where_reached
from tests import processes
from tests.unit.clients import LOCAL, PATIENCE, connect, everything, get

if TYPE_CHECKING:
    from collections.abc import Iterator


# How long a client may take where a test wants to see the end of it.
SHORT = 0.5


def answer(path: str) -> Answer:
    if path == "/raises":
        raise RuntimeError("this path is broken")
    return Answer(HTTPStatus.OK, f"you asked for {path}\n".encode())


def serving(patience: float) -> closing[HttpServerThread]:
    return closing(HttpServerThread(LOCAL, 0, answer, patience=patience))


@pytest.fixture
def server() -> Iterator[HttpServerThread]:
    with serving(SHORT) as server:
        yield server


@pytest.fixture
def patient() -> Iterator[HttpServerThread]:
    """No client of this server is ever cut off by the clock."""
    with serving(3600.0) as server:
        yield server


def say(port: int, data: bytes) -> bytes:
    """All that the server says to these bytes, until it hangs up."""
    with connect(port) as line:
        line.sendall(data)
        return everything(line)


# ---------------------------------------------------------------- requests


def test_head_has_no_body(server: HttpServerThread) -> None:
    head, _, body = say(server.port, b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 17" in head
    assert body == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /x\r\n\r\n", 400),
        (b"GET  /x HTTP/1.1\r\n\r\n", 400),
        (b"GET /x HTTP/2.0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", 200),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", 431),
        (b"GET /raises HTTP/1.1\r\n\r\n", 500),
    ],
)
def test_an_odd_request_is_answered_and_shown_nowhere(
    server: HttpServerThread,
    request_: bytes,
    status: int,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = say(server.port, request_)
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert get(server.port, "/x?y=1") == (200, "you asked for /x\n")
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


@pytest.mark.parametrize("data", [b"", b"GET /x HT", b"GET /x HTTP/1.1\r\nHost: a\r\n"])
def test_half_a_request_is_cut_off_and_keeps_nobody_waiting(
    server: HttpServerThread, patient: HttpServerThread, data: bytes
) -> None:
    with connect(patient.port) as half:
        half.sendall(data)
        assert get(patient.port, "/x")[0] == 200
    assert say(server.port, data) == b""


def test_a_client_that_says_a_byte_now_and_then_is_cut_off(server: HttpServerThread) -> None:
    over = threading.Event()

    def trickle(line: socket.socket) -> None:
        with suppress(OSError):
            while not over.wait(0.02):
                line.sendall(b"a")

    with connect(server.port) as line:
        teller = threading.Thread(target=trickle, args=(line,))
        teller.start()
        try:
            assert everything(line) == b""
        finally:
            over.set()
            teller.join()


def test_a_client_that_goes_on_after_its_request_is_cut_off(
    server: HttpServerThread, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(server.port) as line:
        line.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        line.sendall(b"more, and no end" * 1000)
        # It is the clock that ends this: the server waits for the client's end.
        assert everything(line).startswith(b"HTTP/1.1 200 ")
    assert capfd.readouterr() == ("", "")


def test_many_that_say_nothing_keep_nobody_waiting(patient: HttpServerThread) -> None:
    with ExitStack() as lines:
        for _ in range(200):
            lines.enter_context(connect(patient.port))
        assert get(patient.port, "/x")[0] == 200


def test_there_are_never_too_many_clients(
    patient: HttpServerThread, capfd: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as lines:
        held = [lines.enter_context(connect(patient.port)) for _ in range(300)]
        # What is too much is cut off without the clock.
        processes.wait_for(
            lambda: len(select.select(held, [], [], 0)[0]) == 300 - 256, PATIENCE, "an end"
        )
    processes.wait_for(lambda: _answers(patient.port), PATIENCE, "room for others")
    patient.close()
    assert capfd.readouterr() == ("", "")


def _answers(port: int) -> bool:
    try:
        return get(port, "/x")[0] == 200
    except OSError:
        return False


def test_after_the_end_nothing_listens_and_nobody_is_left(patient: HttpServerThread) -> None:
    with connect(patient.port) as line:
        line.sendall(b"GET /x")
        assert get(patient.port, "/x")[0] == 200  # it has taken the first one as well, by now
        patient.close()
        assert everything(line) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(patient.port)
    assert "metrics-server" not in {thread.name for thread in threading.enumerate()}
    patient.close()


def test_who_connects_at_the_last_moment_is_not_left_waiting() -> None:
    late: list[socket.socket] = []

    def end(path: str) -> Answer:
        late.append(connect(server.port))
        with suppress(RuntimeError):  # its thread cannot wait for itself
            server.close()
        return answer(path)

    server = HttpServerThread(LOCAL, 0, end)
    with connect(server.port) as line:
        line.sendall(b"GET /x HTTP/1.0\r\n\r\n")
        everything(line)
    server.close()
    with late[0]:
        assert everything(late[0]) == b""


@pytest.mark.parametrize("host", ["::1", "::"])
def test_it_listens_at_addresses_of_ipv6(host: str) -> None:
    try:
        server = HttpServerThread(host, 0, answer)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with closing(server):
        with socket.create_connection(("::1", server.port), timeout=PATIENCE) as line:
            line.sendall(b"GET /x HTTP/1.0\r\n\r\n")
            assert everything(line).startswith(b"HTTP/1.1 200 ")
        assert host == "::1" or get(server.port, "/x")[0] == 200  # and at those of IPv4


# ---------------------------------------------------------------- where a node listens


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.3"])
def test_it_listens_at_its_own_address_only(address: str) -> None:
    where = where_reached(address)
    assert (where.address, where.why) == (address, "")
    assert where.loopback
    with where.listen() as listener:
        port = listener.getsockname()[1]
        assert way_to(listener) == address
        socket.create_connection((address, port), timeout=20).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=20)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("192.0.2.1", "no address of this machine"),  # as behind a NAT
        ("2001:db8::1", "no address of this machine"),
        (socket.gethostname(), "is a name"),
    ],
)
def test_where_that_cannot_be_it_listens_everywhere_and_says_why(address: str, why: str) -> None:
    where = where_reached(address)
    assert where.address == ""
    assert why in where.why
    with where.listen() as listener:
        port = listener.getsockname()[1]
        for one in (way_to(listener), "127.0.0.2"):
            socket.create_connection((one, port), timeout=20).close()


def test_where_the_address_was_lost_it_listens_everywhere() -> None:
    with Where("192.0.2.1").listen() as listener:
        assert way_to(listener) == "127.0.0.1"
        with pytest.raises(OSError, match="in use"):
            Where("127.0.0.1").listen(listener.getsockname()[1])


def test_a_loopback_by_name_is_one_address() -> None:
    assert own_address("localhost", Endpoint("etcd", ("192.0.2.1:2379",))) == "127.0.0.1"


@pytest.mark.parametrize("turns", range(6))
def test_who_connects_while_a_server_stops_is_taken_or_refused(turns: int) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()
        await writer.wait_closed()

    async def heard() -> bytes:
        listener = listen("127.0.0.1")
        where = listener.getsockname()
        server = await asyncio.start_server(greet, sock=listener)
        with socket.create_connection(where, timeout=20) as line:
            for _ in range(turns):  # after some of them it has been accepted, and is not served yet
                await asyncio.sleep(0)
            await stop_listening(server)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(where, timeout=20)
            try:
                return await asyncio.to_thread(line.recv, 5)
            except ConnectionResetError:
                return b"refused"

    assert asyncio.run(heard()) in (b"hello", b"refused")
