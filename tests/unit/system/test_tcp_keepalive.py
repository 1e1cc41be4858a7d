"""What is set on connections between ranks, and on which."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.system import tcp_keepalive, torch_private
from elastic_runtime.system.tcp_keepalive import ENV_PEER_TIMEOUT, Options

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    # Another loopback address than that of the client: as if it were another host.
    with socket.create_server(("127.0.0.2", 0)) as made:
        yield made


def _connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname(), source_address=("127.0.0.3", 0))


def _patience(line: socket.socket) -> int:
    return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_only_what_is_connected_meanwhile_is_tended(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_PEER_TIMEOUT, "7")
    with _connect(listener) as others:
        with tcp_keepalive.tended():
            mine = _connect(listener)
        with mine:
            assert (_patience(mine), _patience(others)) == (7000, 0)
            assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert others.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_what_the_script_connects_while_gloo_does_is_left_alone(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_PEER_TIMEOUT, "7")
    port = listener.getsockname()[1]
    said = struct.pack("=H", socket.AF_INET) + struct.pack("!H4B", port, 127, 0, 0, 2)
    lines: list[socket.socket] = []

    def make() -> list[bytes]:
        lines.append(_connect(listener))
        return [said]

    with socket.create_server(("127.0.0.2", 0)) as service, tcp_keepalive.tended():
        (build,) = torch_private._gloo_builders  # what torch's constructor would go through
        build(make)
        lines.append(_connect(service))
    try:
        assert [_patience(line) for line in lines] == [7000, 0]
    finally:
        for line in lines:
            line.close()
    assert not torch_private._gloo_builders


@pytest.mark.parametrize("value", ["0", "", "soon", None])
def test_it_can_be_switched_off(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv(ENV_PEER_TIMEOUT, raising=False)
    if value is not None:
        monkeypatch.setenv(ENV_PEER_TIMEOUT, value)
    with tcp_keepalive.tended():
        mine = _connect(listener)
    with mine:
        assert _patience(mine) == 0
