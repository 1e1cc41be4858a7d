"""The end of a server: whoever is connected, or just about to be, is hung up on."""

from __future__ import annotations

import asyncio
import queue
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.event_loop import Loop
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.system import threads
from elastic_runtime.system.listening import listen

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 60.0
_HELLO = {
    **{"protocol": wire.STORE_PROTOCOL, "release": "0", "run": "r", "session": "s", "ttl": 5.0},
    **{"own": "nodes/x", "wide": False, "without": [], "term": 0, "host": ""},
}


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


def _everything(line: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionResetError):
        while part := line.recv(65536):
            said += part
    return said


def test_at_its_end_it_hangs_up_and_nobody_takes_that_for_a_crash(loop: Loop) -> None:
    crashes: queue.Queue[threads.Crash] = queue.Queue()
    with ExitStack() as stack:
        stack.callback(threads.watch(crashes.put))
        server = StoreServer(listen("127.0.0.1"))
        stack.callback(server.close)
        line = stack.enter_context(_connect(server))
        assert line.recv(1)  # it is a client by now
        server.close()
        _everything(line)
        loop.run(asyncio.sleep(0), PATIENCE)  # what the end has caused has happened as well
    assert crashes.empty()


@pytest.mark.parametrize("turns", range(6))
def test_who_connects_at_the_last_moment_is_not_left_waiting(loop: Loop, turns: int) -> None:
    server = StoreServer(listen("127.0.0.1"))

    async def end() -> socket.socket:
        line = _connect(server)
        for _ in range(turns):  # after some of them it has been accepted, and is not served yet
            await asyncio.sleep(0)
        await server._end()
        return line

    try:
        with loop.run(end(), PATIENCE) as line:
            _everything(line)
    finally:
        server.close()
