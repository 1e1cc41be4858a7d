"""Where a node may listen for whoever knows the endpoint only."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from elastic_runtime.rendezvous.stores.embedded.store_hosting import (
    SeveralMachines,
    listening_address,
)

_V4, _V6 = socket.AF_INET, socket.AF_INET6
# Reserved for documentation: never of this machine.
_OTHER, _OTHER6 = (_V4, "192.0.2.77"), (_V6, "2001:db8::77")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("192.0.2.77", None),
        ("127.0.0.2", "127.0.0.2"),
        ("0.0.0.0", ""),
        ("localhost", "127.0.0.1"),
        ("a..b", None),
    ],
)
def test_where_to_listen(host: str, address: str | None) -> None:
    assert listening_address(host, 1234) == address


def _named(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[int, str]) -> None:
    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        return [(family, socket.SOCK_STREAM, 6, "", (ip, port)) for family, ip in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_a_name_of_several_machines_is_no_place_for_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "elastic_runtime.rendezvous.stores.embedded.store_hosting._leads_away",
        lambda ip, family: True,
    )
    _named(monkeypatch, _OTHER, (_V4, "127.0.0.1"))
    with pytest.raises(SeveralMachines, match=r"\(127.0.0.1\) and for others \(192.0.2.77\)"):
        listening_address("job", 1234)
    _named(monkeypatch, _OTHER, _OTHER6)
    assert listening_address("job", 1234) is None


def test_several_addresses_of_this_machine_are_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one to which no way leads, as of IPv6 where machines have none."""
    monkeypatch.setattr(
        "elastic_runtime.rendezvous.stores.embedded.store_hosting._leads_away",
        lambda ip, family: False,
    )
    _named(monkeypatch, (_V4, "127.0.0.1"), (_V4, "127.0.0.2"), _OTHER6)
    assert listening_address("job", 1234) == "127.0.0.1"
