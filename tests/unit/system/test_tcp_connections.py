"""Sockets that others own are found and changed, and stay as their owners have them."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.system.tcp_connections import connections

if TYPE_CHECKING:
    from collections.abc import Iterator

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.2", 0)) as server:
        near = socket.create_connection(server.getsockname(), source_address=("127.0.0.3", 0))
        far, _ = server.accept()
        with near, far:
            yield near, far


def test_both_ends_are_found_with_their_addresses(pair: Pair) -> None:
    near, far = pair
    found = {one.fd: one for one in connections()}
    assert (found[near.fileno()].here, found[near.fileno()].host) == ("127.0.0.3", "127.0.0.2")
    assert found[near.fileno()].port == far.getsockname()[1]
    assert found[far.fileno()].host == "127.0.0.3"
    assert found[far.fileno()].inode == os.fstat(far.fileno()).st_ino


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_is_known_by_the_end_at_which_somebody_listens(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        near = socket.create_connection(server.getsockname()[:2])
        far, _ = server.accept()
        port = server.getsockname()[1]
    with near, far:
        ends = {one.fd: one for one in connections()}
        address = bytes(4 if ":" in host else 0) + socket.inet_pton(family, host)
        listens = struct.pack("=H", family) + struct.pack("!H", port) + address
        other = struct.pack("=H", family) + struct.pack("!H", port ^ 1) + address
        for line in (near, far):
            assert ends[line.fileno()].meets([b"", b"x" + listens + b"y"])
            assert not ends[line.fileno()].meets([other])


def test_a_default_timeout_of_the_script_changes_nothing_for_their_owners(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = pair
    assert os.get_blocking(near.fileno())

    def refuse(seconds: float | None) -> None:
        raise AssertionError("it is the whole process's, and other threads rely on it")

    socket.setdefaulttimeout(5.0)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "setdefaulttimeout", refuse)
            (mine,) = (one for one in connections() if one.fd == near.fileno())
            mine.set(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert socket.getdefaulttimeout() == 5.0
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(near.fileno())
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_an_option_that_nobody_knows_is_told(pair: Pair) -> None:
    (mine,) = (one for one in connections() if one.fd == pair[0].fileno())
    with pytest.raises(OSError, match="Protocol not available"):
        mine.set(socket.IPPROTO_TCP, 9999, 1)


def test_one_that_is_shut_ends_for_its_peer(pair: Pair) -> None:
    near, far = pair
    (mine,) = (one for one in connections() if one.fd == near.fileno())
    mine.shut(socket.SHUT_RDWR)
    assert far.recv(1) == b""


def test_a_later_socket_with_the_same_number_is_left_alone(pair: Pair) -> None:
    near, _ = pair
    (mine,) = (one for one in connections() if one.fd == near.fileno())
    with socket.create_server(("127.0.0.2", 0)) as server:
        other = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with other, far:
            os.dup2(other.fileno(), near.fileno())
            mine.shut(socket.SHUT_RDWR)
            other.sendall(b"x")
            assert far.recv(1) == b"x"
            with pytest.raises(OSError, match="another socket's"):
                mine.set(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
