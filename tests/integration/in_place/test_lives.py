"""Nodes that find each other by etcd: who is taken for dead, and what outlives them all."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
from tests import processes
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer


pytestmark = pytest.mark.etcd


def where(folder: Path, etcd: EtcdServer) -> tuple[str, ...]:
    """Finds a job of this folder's."""
    return ("--rdzv-endpoint", f"etcd://{etcd.endpoint}/{folder.name}", "--rdzv-id", "x")


def life(number: int) -> dict[str, str]:
    """As a launcher says which start of a node it is."""
    return {"ELASTIC_NODE_LIFE": str(number)}


def test_nobody_waits_for_a_silent_node_that_another_has_replaced(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    place = (*where(tmp_path, etcd), "--min", "1", "--max", "1")
    name = ("--lease-ttl", "3", "--node-name", "pod-0")
    first, second = tmp_path / "first", tmp_path / "second"
    with Job(first, "steps.py", *place, *name, environ=life(1)) as silent:
        silent.ranks(1)
        # As from a machine that is off: the port of a stopped process takes probes, unanswered.
        processes.send([silent.process.pid], signal.SIGSTOP)
        # Without a word of its life it would wait for --fence-timeout, ten minutes.
        with Job(second, "steps.py", *place, *name, environ=life(2)) as later:
            later.ranks(1)
            later.finish()


def test_what_the_job_was_scaled_to_outlives_all_its_nodes(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    place = where(tmp_path, etcd)
    options = (*place, "--min", "1", "--max", "2", "--lease-ttl", "3")
    folders = [tmp_path / name for name in ("first", "second", "third")]
    with Job(folders[0], "steps.py", *options) as first:
        first.ranks(1)
        assert elasticctl(["scale", "--max", "1", *place]) == 0
    with Job(folders[1], "steps.py", *options) as second:
        again = second.ranks(1)
        assert again[0].round > 1
        with Job(folders[2], "steps.py", *options) as third:
            (waits,) = third.wait(lambda: third.events("job.waiting"), "the third waits outside")
            assert (waits["have"], waits["maximum"]) == (1, 1)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_joiner_takes_nobody_for_dead_who_has_an_address_of_ipv6(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    options = (*where(tmp_path, etcd), "--min", "1", "--max", "2", "--local-addr", "::1")
    with Job(tmp_path, "steps.py", *options, "--node-name", "a") as one:
        alone = one.ranks(1)
        with Job(tmp_path, "steps.py", *options, "--node-name", "b") as two:
            both = one.ranks(2, after=alone[0].round)
            assert both[0].pid == alone[0].pid, one.story()
            # A peer that is only slow to come back is not dead either.
            one.kill(both[1])
            one.ranks(2, after=both[0].round)
            assert not one.events("node.excluded"), one.story()
            one.enough()
            assert (one.end(), two.end()) == (0, 0), one.story() + two.story()
