"""Many faults in a row upon a job in place: no step is lost or repeated, and nothing is left over.

``ELASTIC_CHAOS_FAULTS`` says how many, ``ELASTIC_CHAOS_SEED`` draws the same ones again; with an
even one the job can undo an optimizer's step, and changes more than that in a step.
``ELASTIC_CHAOS_KINDS`` (``hang,ask to leave``) takes no others. ``scripts/proof/in-place`` brings
about hundreds, ``scripts/proof/in-place-kinds`` each kind in a job of its own.
"""

from __future__ import annotations

import json
import os
import random
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import pytest

from tests.chaos import in_place_plan as plan
from tests.chaos.fleet import Node
from tests.chaos.in_place_cluster import InPlaceCluster
from tests.chaos.in_place_sight import Histories, Size
from tests.chaos.in_place_truth import forsaken, table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewEtcd

pytestmark = [pytest.mark.chaos, pytest.mark.etcd]

_COUNT = int(os.environ.get("ELASTIC_CHAOS_FAULTS", "30"))
_NODES = 4
_SAVE_EVERY = "500ms"
_asked = os.environ.get("ELASTIC_CHAOS_KINDS", "")
_KINDS = {plan.Kind(word) for word in _asked.split(",")} if _asked else plan.KINDS
# Fewer moments of calm say nothing about growth.
_MEASURED = 40
# What may be there by chance: KiB, descriptors, threads. A group that leaked with each of 180
# recoveries would be far beyond.
_ROOM = Size(memory=24 << 10, descriptors=12, threads=8)


@pytest.mark.users_start
@pytest.mark.golden("in place on etcd: workers and nodes die, leave and join, and no step is lost")
def test_the_common_faults(tmp_path: Path, new_etcd: NewEtcd) -> None:
    with InPlaceCluster(tmp_path, new_etcd(), save_every=_SAVE_EVERY) as cluster:
        cluster.start(3)
        for kind in (plan.Kind.KILL_WORKER, plan.Kind.KILL_NODE, plan.Kind.JOIN, plan.Kind.ASK):
            cluster.strike(plan.Fault(kind, plan.Target.LAST, plan.Pace.CALM))
        cluster.finish()


@pytest.mark.timeout(60 + 15 * _COUNT)
def test_random_faults(tmp_path: Path, new_etcd: NewEtcd) -> None:
    seed = int(os.environ.get("ELASTIC_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ELASTIC_CHAOS_SEED={seed} ELASTIC_CHAOS_FAULTS={_COUNT}")  # shown if the test fails
    shadow = seed % 2 == 0
    with InPlaceCluster(tmp_path, new_etcd(), save_every=_SAVE_EVERY, shadow=shadow) as cluster:
        cluster.start(_NODES)
        began = time.monotonic()
        for number, fault in enumerate(plan.faults(seed, _COUNT, _NODES, _KINDS)):
            done = cluster.strike(fault)
            at = f"{time.monotonic() - began:.2f} s, {time.monotonic():.3f}"
            print(f"{number}: {fault}: {done}, step {cluster.step} of round {cluster.round}, {at}")
        # Before the end, which says what was broken: this is to be seen in any case.
        cluster.until_calm()
        print(table(cluster.stalls()))
        _check_growth([agent for agent, _ in cluster.sizes])
        _check_growth([worker for _, worker in cluster.sizes])
        cluster.finish()


def _check_growth(sizes: list[Size]) -> None:
    """The first node's processes take no more at the end than after the first faults."""
    if len(sizes) < _MEASURED:
        return
    early, late = sizes[20 : 20 + len(sizes) // 4], sizes[-(len(sizes) // 4) :]
    for name in ("memory", "descriptors", "threads"):
        grown = median(getattr(s, name) for s in late) - median(getattr(s, name) for s in early)
        print(f"{name}: grown by {grown} from {early[0]}")
        assert grown <= getattr(_ROOM, name), f"{name} grew by {grown}: {early[0]} to {late[-1]}"


def test_a_worker_that_its_agent_has_ended_is_known_by_the_agents_words(tmp_path: Path) -> None:
    for number, (name, age) in enumerate([("first", 9), ("second", 6), ("third", 1)]):
        at = time.monotonic_ns() - age * 10**9
        said = {"what": "born", "at": at, "pid": 100 + number, "mark": "run/n0"}
        (tmp_path / name).write_text(json.dumps(said) + "\n")
    histories = Histories(tmp_path)
    histories.read()

    def node(why: str) -> Node:
        told = datetime.now(UTC) - timedelta(seconds=3)
        words = {"event": "worker.stuck", "timestamp": told.isoformat(), "why": why}
        log = tmp_path / "log"
        log.write_text(json.dumps(words) + "\n")
        return Node("n0", "run/n0", agent=None, log=log)  # type: ignore[arg-type]

    (ended,) = forsaken([node("it waits for ranks that are gone")], histories)
    assert (ended.process, ended.kind) == ("second", "killed")
    assert not forsaken([node("it does not answer")], histories)


def test_a_seed_draws_the_same_faults() -> None:
    assert [*plan.faults(7, 200, 4)] == [*plan.faults(7, 200, 4)]
    assert [*plan.faults(7, 200, 4)] != [*plan.faults(8, 200, 4)]


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_keeps_the_job_alive(seed: int) -> None:
    """It never takes the last rank that has the state, nor too many nodes."""
    running = holders = 4
    ills: set[plan.Kind] = set()
    drawn = [*plan.faults(seed, 400, 4)]
    for fault in drawn:
        if fault.pace is plan.Pace.CALM:
            holders = running  # a limit is left out: it makes them fewer, never the only one
        if fault.kind in plan.LOSSES:
            assert holders > 1, fault
            holders -= 1
        if fault.kind in plan.PLAYS:
            assert not ills
            assert fault.pace is plan.Pace.CALM
        if fault.kind in plan.CURES:
            assert plan.CURES[fault.kind] not in ills
            ills.add(plan.CURES[fault.kind])
        running += fault.kind in (plan.Kind.JOIN, plan.Kind.RESUME)
        running -= fault.kind in plan.LEAVES | plan.AWAY
        if fault.kind in plan.RENEWALS:
            holders = 1
        ills.discard(fault.kind)
        assert plan.FEWEST <= running
        assert running + (plan.Kind.RESUME in ills) <= plan.MOST
    assert not ills
    assert drawn[0].pace is plan.Pace.CALM
    assert {fault.pace for fault in drawn} == set(plan.Pace)
    for before, fault in pairwise(drawn):
        if fault.pace in (plan.Pace.SEALING, plan.Pace.AT_ONCE):
            assert before.kind in plan.LOSSES


@pytest.mark.parametrize("seed", range(20))
def test_sixty_faults_are_of_all_kinds(seed: int) -> None:
    assert {fault.kind for fault in plan.faults(seed, 60, 4)} == set(plan.Kind)
