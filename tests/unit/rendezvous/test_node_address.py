"""Which interface has an address."""

from __future__ import annotations

import socket

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.node_address import interface_of, own_address


def _outward() -> str:
    """The address of this machine from which others are reached."""
    return own_address("", Endpoint("etcd", ("192.0.2.1:2379",)))


def test_the_interface_of_this_machines_address_is_found() -> None:
    try:
        address = socket.inet_aton(_outward())
    except OSError:
        pytest.skip("this machine has no way out")
    assert interface_of(socket.inet_ntoa(address)) in {name for _, name in socket.if_nameindex()}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "192.0.2.77"])
def test_nobody_else_reaches_it_there(address: str) -> None:
    assert interface_of(address) == ""


def test_what_is_no_name_is_told_by_whoever_connects_and_not_here() -> None:
    assert own_address("", Endpoint("c10d", ("a..b:29400",))) == socket.getfqdn()
