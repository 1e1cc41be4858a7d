"""Nodes that lose sight of each other, while all see the store: the largest part goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.partitions.cuts import Cut, Kind
from tests.partitions.job import InPlaceJob
from tests.partitions.network import Network

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.partitions, pytest.mark.usefixtures("needs_networks")]


def test_others_go_on_without_a_node_that_is_cut_off_and_take_it_back(tmp_path: Path) -> None:
    names = ["n0", "n1", "n2"]
    with Network(names, tmp_path) as net, InPlaceJob(tmp_path, net, hang=6.0) as job:
        job.start(len(names))
        figures = job.suffer(Cut(Kind.PEERS, 2, 12))
        job.finish()
    assert (figures.replaced, figures.failures, figures.fruitless) == (0, 0, 0)
    assert figures.rounds == 2
