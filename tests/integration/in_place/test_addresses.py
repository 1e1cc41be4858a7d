"""Nodes whose addresses are those of IPv6."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer


@pytest.mark.etcd
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_joiner_takes_nobody_for_dead_who_has_an_address_of_ipv6(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    endpoint = f"etcd://{etcd.endpoint}/{tmp_path.name}"
    options = ("--rdzv-endpoint", endpoint, "--rdzv-id", "six", "--min", "1", "--max", "2")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with Job(first, "steps.py", *options, "--local-addr", "::1", "--node-name", "a") as one:
        alone = one.ranks(1)
        name = ("--local-addr", "::1", "--node-name", "b")
        with Job(first, "steps.py", *options, *name) as two:
            both = one.ranks(2, after=alone[0].round)
            assert both[0].pid == alone[0].pid, one.story()
            # A peer that is only slow to come back is not dead either.
            one.kill(both[1])
            one.ranks(2, after=both[0].round)
            assert not one.events("node.excluded"), one.story()
            one.enough()
            assert (one.end(), two.end()) == (0, 0), one.story() + two.story()
