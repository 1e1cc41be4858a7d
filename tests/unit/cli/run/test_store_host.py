"""Where the embedded store listens, and what is said if it cannot."""

from __future__ import annotations

import socket

import pytest

from elastic_runtime.cli.run.store_host import hosted
from elastic_runtime.cli.run.store_target import EmbeddedTarget
from elastic_runtime.errors import UsageError


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def test_the_embedded_store_listens_on_loopback_only() -> None:
    with hosted(EmbeddedTarget(), "") as endpoint:
        host, _, port = endpoint.hosts[0].rpartition(":")
        assert (host, endpoint.hosted_here) == ("127.0.0.1", True)
        assert _listens("127.0.0.1", int(port))
        assert not _listens("127.0.0.2", int(port))
    assert not _listens("127.0.0.1", int(port))


def test_the_embedded_store_can_be_opened_to_others() -> None:
    with hosted(EmbeddedTarget(""), "node-a.example") as endpoint:
        host, _, port = endpoint.hosts[0].rpartition(":")
        assert host == "node-a.example"
        assert _listens("127.0.0.2", int(port))


def test_a_taken_port_is_a_usage_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=f"port {port}: Address already in use"),
            hosted(EmbeddedTarget("127.0.0.1", port), ""),
        ):
            pass


def test_a_port_that_nobody_has_asked_for_may_be_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with hosted(EmbeddedTarget(port=port, only_there=False), "") as endpoint:
            other = int(endpoint.hosts[0].rpartition(":")[2])
            assert other != port
            assert _listens("127.0.0.1", other)
