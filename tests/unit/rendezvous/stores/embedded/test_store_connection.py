"""Connecting to a host whose name, address or port leads nowhere."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from elastic_runtime.rendezvous.stores.embedded import store_connection
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.store_connection import (
    HostConnection,
    HostUnreachable,
)
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.system.listening import listen

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
