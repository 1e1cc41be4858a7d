"""Nodes that leave and join while the ranks train alone."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
from tests import processes
from tests.integration.diloco.replica_job import BATCH
from tests.integration.diloco.replicas import Replicas

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer

FAR = 100_000  # inner steps: no sync is due in any test
SIZE = BATCH * 400
# The first round has all nodes: the job would be done before a late one has come.
NODES = ("--local-nodes=3", "--min=1", "--max=3", "--last-call=60")


def test_a_node_that_is_asked_to_leave_takes_nothing_with_it(tmp_path: Path) -> None:
    with Replicas(tmp_path, *NODES, sync_every=FAR, size=SIZE) as job:
        job.together(3, inner=5)
        leaving = sorted(job.nodes())[1]
        processes.send([job.nodes()[leaving]], signal.SIGTERM)
        second = job.together(2, after=1)
        assert job.end() == 0, job.story()
        entered = [note for note in job.said("enter") if note["round"] == 2]
        assert [note["pid"] for note in entered] and {n["pid"] for n in entered} == set(second)
        assert {(note["step"], note["inner"]) for note in entered} == {(1, 0)}
        job.check_all_once(SIZE)
        job.check_alike(2)


def test_a_node_leaves_at_once_while_another_one_waits_to_join(
    tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--rdzv-endpoint", f"etcd://{etcd.endpoint}/{tmp_path.name}", "--rdzv-id", "both")
    options = (*where, "--min=1", "--max=3", "--grace=120")
    kind = {"sync_every": FAR, "size": BATCH * 2500}

    def is_to_grow() -> bool:
        assert elasticctl(["status", *where]) == 0
        return "changing" in capsys.readouterr().out

    with (
        Replicas(tmp_path, *options, "--local-nodes=2", **kind) as job,
        contextlib.ExitStack() as later,
    ):
        first = job.together(2, inner=5)
        third = later.enter_context(Replicas(tmp_path, *options, **kind))
        job.wait(is_to_grow, "the order to take the third node in")
        assert job.round == 1
        processes.send([job.nodes()[sorted(job.nodes())[1]]], signal.SIGTERM)
        second = job.together(2, after=1)
        assert (job.end(), third.end()) == (0, 0), job.story()
        assert len(set(first) & set(second)) == 1
        job.check_all_once(BATCH * 2500)
        job.check_alike(2)


@pytest.mark.golden("DiLoCo: a job that is stopped has saved all")
def test_a_job_that_is_stopped_has_saved_all_that_was_trained(tmp_path: Path) -> None:
    with Replicas(tmp_path, "--nproc-per-node=2", sync_every=FAR, saves=True, size=SIZE) as job:
        job.together(2, inner=10)
        processes.send([job.process.pid], signal.SIGTERM)
        job.end()
        made = max(note["made"] for note in job.said("inner"))
    with Replicas(tmp_path, "--nproc-per-node=2", sync_every=FAR, saves=True, size=SIZE) as job:
        assert job.end() == 0, job.story()
        entered = job.said("enter")[-1]
        assert (entered["step"], entered["made"], entered["inner"]) == (1, made, 0)
        job.check_all_once(SIZE)


def test_a_node_that_joins_waits_for_no_sync_that_is_far_away(tmp_path: Path) -> None:
    options = ("--nnodes=1:2", "--grace=1", "--nproc-per-node=2")
    with (
        contextlib.ExitStack() as later,
        Replicas(tmp_path, *options, sync_every=FAR, size=BATCH * 1000) as job,
    ):
        first = job.together(2)
        for pid in first:  # so that the job is not done before the other node has come
            job.tell("slow", pid)
        joined = later.enter_context(job.join())
        job.together(4, after=1)
        for pid in first:
            (tmp_path / f"slow-{pid}").unlink()
        assert job.end() == 0, job.story()
        assert joined.wait(30) == 0
        entered = [note for note in job.said("enter") if note["size"] == 4]
        furthest = max(note["inner"] for note in entered)
        new = [note for note in entered if note["pid"] not in first]
        assert furthest > 0
        assert [note["inner"] for note in new] == [furthest] * 2
        assert {note["made"] for note in new} == {furthest}
        job.check_all_once(BATCH * 1000)
