"""Many faults to one job: what a job lost before is given back to it, and counts as a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.bench.measure.faults import FIRST, LAST, Ground, Trial
from scripts.bench.measure.in_a_row import in_a_row
from scripts.bench.measure.job import PLAIN
from tests.etcd_server import EtcdProcess

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_gets_its_node_back_before_the_next_fault(tmp_path: Path) -> None:
    trials = [
        Trial("in-place-etcd", 2, "node-kill", LAST, 5, 0),
        Trial("in-place-etcd", 2, "worker-kill", FIRST, 5, 0),
    ]
    server = EtcdProcess()
    try:
        ground = Ground(server.endpoint, PLAIN, 60.0)
        results = list(in_a_row(trials, tmp_path / "row", ground))
    finally:
        server.close()
    assert [(r.trial.fault, r.outcome) for r in results] == [
        ("node-kill", "back"),
        ("join", "back"),
        ("worker-kill", "back"),
    ]
    assert len(list((tmp_path / "row" / "in-place-etcd-2").iterdir())) == 1, "it was one job"
