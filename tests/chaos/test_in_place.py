"""Many faults in a row upon a job in place: no step is lost or repeated, and nothing is left over.

``ELASTIC_CHAOS_FAULTS`` says how many, ``ELASTIC_CHAOS_SEED`` draws the same ones again.
"""

from __future__ import annotations

import os
import random
import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import pytest

from tests.chaos import in_place_plan as plan
from tests.chaos.in_place_cluster import InPlaceCluster, Size

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewEtcd

pytestmark = [pytest.mark.chaos, pytest.mark.etcd]

_COUNT = int(os.environ.get("ELASTIC_CHAOS_FAULTS", "25"))
_NODES = 4
# Fewer moments of calm say nothing about growth.
_MEASURED = 40
# What may be there by chance: KiB, descriptors, threads. A group that leaked with each of 180
# recoveries would be far beyond.
_ROOM = Size(memory=24 << 10, descriptors=12, threads=8)


@pytest.mark.timeout(60 + 10 * _COUNT)
def test_random_faults(tmp_path: Path, new_etcd: NewEtcd) -> None:
    seed = int(os.environ.get("ELASTIC_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ELASTIC_CHAOS_SEED={seed} ELASTIC_CHAOS_FAULTS={_COUNT}")  # shown if the test fails
    with InPlaceCluster(tmp_path, new_etcd()) as cluster:
        cluster.start(_NODES)
        began = time.monotonic()
        for number, fault in enumerate(plan.faults(seed, _COUNT, _NODES)):
            done = cluster.strike(fault)
            at = f"{time.monotonic() - began:.2f} s, {time.monotonic():.3f}"
            print(f"{number}: {fault}: {done}, step {cluster.step} of round {cluster.round}, {at}")
        cluster.finish()
        _check_growth([agent for agent, _ in cluster.sizes])
        _check_growth([worker for _, worker in cluster.sizes])


def _check_growth(sizes: list[Size]) -> None:
    """The first node's processes take no more at the end than after the first faults."""
    if len(sizes) < _MEASURED:
        return
    early, late = sizes[20 : 20 + len(sizes) // 4], sizes[-(len(sizes) // 4) :]
    for name in ("memory", "descriptors", "threads"):
        grown = median(getattr(s, name) for s in late) - median(getattr(s, name) for s in early)
        print(f"{name}: grown by {grown} from {early[0]}")
        assert grown <= getattr(_ROOM, name), f"{name} grew by {grown}: {early[0]} to {late[-1]}"


def test_a_seed_draws_the_same_faults() -> None:
    assert [*plan.faults(7, 200, 4)] == [*plan.faults(7, 200, 4)]
    assert [*plan.faults(7, 200, 4)] != [*plan.faults(8, 200, 4)]


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_keeps_the_job_alive(seed: int) -> None:
    running, stopped = 4, 0
    drawn = [*plan.faults(seed, 200, 4)]
    for fault in drawn:
        stopped += (fault.kind is plan.Kind.STOP_NODE) - (fault.kind is plan.Kind.RESUME)
        running += (fault.kind is plan.Kind.JOIN) - (fault.kind in (_GOES))
        assert plan.FEWEST <= running - stopped
        assert running <= plan.MOST
        assert stopped in (0, 1)
    assert not stopped
    assert drawn[0].pace is plan.Pace.CALM
    assert {fault.kind for fault in drawn} == set(plan.Kind)
    assert {fault.pace for fault in drawn} == set(plan.Pace)
    for before, fault in pairwise(drawn):
        if fault.pace in (plan.Pace.SEALING, plan.Pace.AT_ONCE):
            assert before.kind in plan.LOSSES


_GOES = (plan.Kind.KILL_NODE, plan.Kind.ASK)
