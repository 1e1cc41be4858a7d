"""A job in place whose network is cut goes on where it can, and is whole again after the heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.partitions import network
from tests.partitions.cuts import Cut, Kind
from tests.partitions.job import InPlaceJob
from tests.partitions.network import Network

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.partitions


@pytest.fixture(autouse=True)
def _possible() -> None:
    if reason := network.why_not():
        pytest.skip(reason)


def test_a_node_loses_sight_of_the_store(tmp_path: Path) -> None:
    names = ["n0", "n1"]
    with Network(names, tmp_path) as net, InPlaceJob(tmp_path, net) as job:
        job.start(len(names))
        figures = job.suffer(Cut(Kind.STORE, 1, 3))
        job.finish()
    assert (figures.rounds, figures.replaced, figures.failures) == (0, 0, 0)
