"""A host, a connection or a client that is silent, cut off or stopped."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.defaults import STORE_TIMEOUT
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import Found, LeaseLost, Lost
from tests.integration.etcd.proxy import Proxy

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
    from tests.integration.embedded.conftest import OpenAt
    from tests.integration.embedded.hosting import HostProcess


def test_a_stopped_host_holds_nobody_for_ever(host: HostProcess, open_at: OpenAt) -> None:
    node, other, leaving = (open_at(host.port, name) for name in ("a", "b", "c"))
    for each in (node, other, leaving):
        each.register()
    host.pause()
    with pytest.raises(StoreUnavailable):
        node.put("job", b"j")
    node.ear.hears(Lost)
    begun = time.monotonic()
    leaving.store.close()
    assert time.monotonic() - begun < STORE_TIMEOUT
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
    with Proxy(f"127.0.0.1:{here.port}") as relay:
        node = open_at(int(relay.endpoint.rpartition(":")[2]), "a", ttl=60.0)
        node.register()
        relay.cut()
        relay.heal()
        node.ear.hears(Found)
        other.put("job", b"meanwhile")
        node.ear.has("job", b"meanwhile")
        node.ear.has(node.key, b"here")
        assert (node.ear.count(LeaseLost), node.ear.was_forgotten()) == (0, False)
        assert node.put(node.key, b"there", node.entry(node.key).version, leased=True)


def test_who_hears_nothing_ends_the_connection(open_at: OpenAt) -> None:
    """A machine that is gone refuses nothing, and no packet of it comes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = open_at(silent.getsockname()[1], "a", waits=False)
        assert f"no answer within {STORE_TIMEOUT:g} s" in node.ear.hears(Lost).why
