"""Cuts in a row, drawn at random: where it can, the job goes on; after each heal all are together.

No step is lost or made twice with other samples, there is one lineage only, nothing counts as a
failure of the script, no worker is replaced, and every agent ends well. To draw other ones::

    ELASTIC_PARTITIONS_SEED=7 ELASTIC_PARTITIONS_CUTS=60 ELASTIC_PARTITIONS_NODES=4 \\
    ELASTIC_PARTITIONS_SECONDS=3,10,30,60 python -m pytest tests/partitions -s -k in_a_row
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.partitions.cuts import Cut, Kind, drawn
from tests.partitions.job import InPlaceJob, PlainJob
from tests.partitions.network import How, Network

if TYPE_CHECKING:
    from pathlib import Path

    from tests.partitions.figures import Figures

pytestmark = [pytest.mark.partitions, pytest.mark.usefixtures("needs_networks")]

_COUNT = int(os.environ.get("ELASTIC_PARTITIONS_CUTS", len(Kind)))
_NODES = int(os.environ.get("ELASTIC_PARTITIONS_NODES", "3"))
_SECONDS = [float(s) for s in os.environ.get("ELASTIC_PARTITIONS_SECONDS", "3,6").split(",")]
# Short, so that short cuts are noticed: a hang in seconds, a silent node after its lease.
_HANG = 2.0
_LEASE = ("--lease-ttl", "1")


def _costs_nothing(figures: Figures) -> bool:
    return (figures.failures, figures.fruitless) == (0, 0)


@pytest.mark.timeout(60 + _COUNT * (30 + max(_SECONDS)))
def test_cuts_in_a_row(tmp_path: Path) -> None:
    seed = int(os.environ.get("ELASTIC_PARTITIONS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ELASTIC_PARTITIONS_SEED={seed}")  # shown if the test fails
    names = [f"n{number}" for number in range(_NODES)]
    with (
        Network(names, tmp_path) as net,
        InPlaceJob(tmp_path, net, hang=_HANG, options=_LEASE) as job,
    ):
        job.start(len(names))
        replaced = 0
        for cut in drawn(seed, _COUNT, _NODES, _SECONDS):
            figures = job.suffer(cut)
            print(figures)
            assert _costs_nothing(figures), job.story()
            replaced += figures.replaced if figures.cut.how is How.DROP else 0
        # Where a connection ends just while gloo sends, gloo now and then tells nobody, and the
        # agent replaces a worker that would wait for ever. It costs no step, and is rare.
        assert replaced <= 1, job.story()
        job.finish()


def test_a_plain_script_loses_no_step_to_a_cut(tmp_path: Path) -> None:
    names = ["n0", "n1"]
    with Network(names, tmp_path) as net, PlainJob(tmp_path, net) as job:
        job.start(len(names))
        for cut in (Cut(Kind.STORES, 0, 3), Cut(Kind.PEERS, 1, 3), Cut(Kind.ALONE, 1, 8)):
            figures = job.suffer(cut)
            print(figures)
            assert figures.failures == 0, job.story()
        job.finish()
