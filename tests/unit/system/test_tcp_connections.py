"""Sockets that others own, and what is set on connections between ranks."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.system import tcp_keepalive, torch_private
from elastic_runtime.system.tcp_connections import TcpConnection, connections
from elastic_runtime.system.tcp_keepalive import ENV_PEER_TIMEOUT, Options

if TYPE_CHECKING:
    from collections.abc import Iterator


Pair = tuple[socket.socket, socket.socket]


@contextmanager
def linked(host: str = "127.0.0.2", source: str = "127.0.0.3") -> Iterator[Pair]:
    """Two ends of a connection, of which the second has been accepted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        where = server.getsockname()[:2]
        near = socket.create_connection(where, source_address=(source, 0))
        far, _ = server.accept()
    with near, far:
        yield near, far


@pytest.fixture
def pair() -> Iterator[Pair]:
    with linked() as ends:
        yield ends


def _ours(line: socket.socket) -> TcpConnection:
    (mine,) = (one for one in connections() if one.fd == line.fileno())
    return mine


def test_both_ends_are_found_with_their_addresses(pair: Pair) -> None:
    near, far = pair
    found = {one.fd: one for one in connections()}
    assert (found[near.fileno()].here, found[near.fileno()].host) == ("127.0.0.3", "127.0.0.2")
    assert found[near.fileno()].port == far.getsockname()[1]
    assert found[far.fileno()].host == "127.0.0.3"
    assert found[far.fileno()].inode == os.fstat(far.fileno()).st_ino


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_is_known_by_the_end_at_which_somebody_listens(host: str) -> None:
    with linked(host, host) as ends:
        family, port = ends[1].family, ends[1].getsockname()[1]
        address = bytes(4 if ":" in host else 0) + socket.inet_pton(family, host)
        listens, other = (
            struct.pack("=H", family) + struct.pack("!H", one) + address for one in (port, port ^ 1)
        )
        for line in map(_ours, ends):
            assert line.meets([b"", b"x" + listens + b"y"])
            assert not line.meets([other])


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
            _ours(near).set(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert socket.getdefaulttimeout() == 5.0
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(near.fileno())
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_an_option_that_nobody_knows_is_told(pair: Pair) -> None:
    with pytest.raises(OSError, match="Protocol not available"):
        _ours(pair[0]).set(socket.IPPROTO_TCP, 9999, 1)


def test_one_that_is_shut_ends_for_its_peer(pair: Pair) -> None:
    near, far = pair
    _ours(near).shut(socket.SHUT_RDWR)
    assert far.recv(1) == b""


def test_a_later_socket_with_the_same_number_is_left_alone(pair: Pair) -> None:
    near, _ = pair
    mine = _ours(near)
    with linked() as (other, far):
        os.dup2(other.fileno(), near.fileno())
        mine.shut(socket.SHUT_RDWR)
        other.sendall(b"x")
        assert far.recv(1) == b"x"
        with pytest.raises(OSError, match="another socket's"):
            mine.set(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


# ---------------------------------------------------------------- between ranks


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (0, None),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (0.3, Options(1, 1, 1, 2000)),
        (5, Options(1, 1, 4, 5000)),
        (20, Options(4, 4, 4, 20000)),
    ],
)
def test_a_silent_peer_is_lost_in_about_that_time(seconds: float, wanted: Options | None) -> None:
    assert tcp_keepalive.options(seconds) == wanted
    if wanted is not None:
        lost = wanted.idle + wanted.count * wanted.interval
        assert 0.8 * wanted.patience <= 1000 * lost <= wanted.patience


def _patience(line: socket.socket) -> int:
    return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_only_what_is_connected_meanwhile_is_tended(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_PEER_TIMEOUT, "7")
    with ExitStack() as lines:
        with tcp_keepalive.tended():
            mine, _ = lines.enter_context(linked())
        others, _ = pair
        assert (_patience(mine), _patience(others)) == (7000, 0)
        assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert others.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_what_the_script_connects_while_gloo_does_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENV_PEER_TIMEOUT, "7")
    with ExitStack() as stack:
        lines: list[socket.socket] = []

        def make() -> list[bytes]:
            near, far = stack.enter_context(linked())
            lines.append(near)
            port = far.getsockname()[1]
            return [struct.pack("=H", socket.AF_INET) + struct.pack("!H4B", port, 127, 0, 0, 2)]

        with tcp_keepalive.tended():
            (build,) = torch_private._gloo_builders  # what torch's constructor would go through
            build(make)
            make()
        assert [_patience(line) for line in lines] == [7000, 0]
    assert not torch_private._gloo_builders


@pytest.mark.parametrize("value", ["0", "", "soon", None])
def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv(ENV_PEER_TIMEOUT, raising=False)
    if value is not None:
        monkeypatch.setenv(ENV_PEER_TIMEOUT, value)
    with ExitStack() as lines:
        with tcp_keepalive.tended():
            mine, _ = lines.enter_context(linked())
        assert _patience(mine) == 0
