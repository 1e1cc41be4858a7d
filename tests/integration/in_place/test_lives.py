"""A node that falls silent, and another one that is started in its name."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests import processes
from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer


def test_nobody_waits_for_a_silent_node_that_another_has_replaced(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    endpoint = f"etcd://{etcd.endpoint}/{tmp_path.name}"
    place = ("--rdzv-endpoint", endpoint, "--rdzv-id", "lives", "--min", "1", "--max", "1")
    name = ("--lease-ttl", "3", "--node-name", "pod-0", "--node-life")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with Job(first, "steps.py", *place, *name, "1") as silent:
        silent.ranks(1)
        # As from a machine that is off: the port of a stopped process takes probes, unanswered.
        processes.send([silent.process.pid], signal.SIGSTOP)
        # Without a word of its life it would wait for --fence-timeout, ten minutes.
        with Job(second, "steps.py", *place, *name, "2") as later:
            later.ranks(1)
            later.finish()
