"""A Slurm for the tests of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm_cluster import SlurmCluster, missing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def proctrack() -> str:
    """How the cluster finds the processes of a step; a test's file may say otherwise."""
    return "pgid"


@pytest.fixture(scope="module")
def slurm(proctrack: str) -> Iterator[SlurmCluster]:
    """Four nodes on this machine; what a test does to them it undoes."""
    if lacks := missing():
        pytest.skip(f"no Slurm here ({', '.join(lacks)}); scripts/provision installs it on Debian")
    cluster = SlurmCluster(proctrack=proctrack)
    yield cluster
    cluster.close()
