"""A node that falls silent, another one that is started in its name, and one that dies alone."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
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


def test_what_the_job_was_scaled_to_outlives_all_its_nodes(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    where = ("--rdzv-endpoint", f"etcd://{etcd.endpoint}/{tmp_path.name}", "--rdzv-id", "x")
    options = (*where, "--min", "1", "--max", "2", "--lease-ttl", "3")
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    with Job(folders[0], "steps.py", *options) as first:
        first.ranks(1)
        assert elasticctl(["scale", "--max", "1", *where]) == 0
    with Job(folders[1], "steps.py", *options) as second:
        again = second.ranks(1)
        assert again[0].round > 1
        with Job(folders[2], "steps.py", *options) as third:
            (waits,) = third.wait(lambda: third.events("job.waiting"), "the third waits outside")
            assert (waits["have"], waits["maximum"]) == (1, 1)
