"""Where a node listens: at the address that it gives to others, where it can, and nowhere else.

Whoever connects while it stops is taken or refused, and never left waiting.
"""

from __future__ import annotations

import asyncio
import socket

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.node_address import own_address
from elastic_runtime.system.listening import Where, listen, stop_listening, way_to, where_reached


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
