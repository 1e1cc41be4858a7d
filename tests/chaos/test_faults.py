"""Faults, one after the other: training goes on, ends, and its checkpoint is right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_DONE, EXIT_LEFT
from tests.chaos.harness import Cluster
from tests.partitions.figures import repeated_steps

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewEtcd
    from tests.etcd_server import EtcdServer

pytestmark = [pytest.mark.chaos, pytest.mark.etcd]

_STEPS = 1 << 20  # all of them are told to end


@pytest.fixture
def endpoint(etcd: EtcdServer) -> str:
    return f"etcd://{etcd.endpoint}"


@pytest.mark.users_start
@pytest.mark.golden("on etcd with checkpoints: nodes join and leave, workers and nodes are killed")
def test_the_common_faults(tmp_path: Path, endpoint: str) -> None:
    with Cluster(tmp_path, endpoint, _STEPS, bounds=(1, 3), options=_QUICK) as cluster:
        leaver, victim = cluster.start(2)
        cluster.wait_for_steps(25, world=2)
        third = cluster.start()[0]
        cluster.wait_for_steps(25, world=3)
        cluster.ask_to_leave(leaver)
        cluster.wait_for_steps(25, world=2)
        assert repeated_steps(cluster.notes(), since=0) == 0, "a planned change costs no step"
        before = cluster.round
        cluster.kill_worker(third)
        cluster.wait(lambda: cluster.round == before + 1, "another round")
        cluster.wait_for_steps(25, world=2)
        cluster.kill_agent(victim)
        cluster.wait(lambda: not victim.processes(), "the end of the killed agent's workers", 10)
        cluster.wait_for_steps(25, world=1)
        cluster.end_training()
        cluster.finish()
        assert leaver.agent.returncode == EXIT_LEFT
        assert cluster.exit_codes() == {EXIT_DONE, EXIT_LEFT, -9}


def test_a_node_falls_silent(tmp_path: Path, endpoint: str) -> None:
    with Cluster(tmp_path, endpoint, _STEPS, bounds=(1, 3), options=_SHORT_LEASE) as cluster:
        victim = cluster.start(3)[1]
        cluster.wait_for_steps(25, world=3)
        cluster.stop_node(victim)
        cluster.wait_for_steps(25, world=2)
        cluster.kill_node(victim)
        cluster.end_training()
        cluster.finish()


@pytest.mark.golden("training goes on while etcd is away")
def test_etcd_is_away_for_20_seconds(tmp_path: Path, new_etcd: NewEtcd) -> None:
    server = new_etcd()
    endpoint = f"etcd://{server.endpoint}"
    with Cluster(tmp_path, endpoint, _STEPS, bounds=(2, 2), seconds=0.02) as cluster:
        cluster.start(2)
        cluster.wait_for_steps(25, world=2)
        server.kill()
        gone = time.monotonic()
        cluster.wait(lambda: time.monotonic() - gone > 20, "20 seconds", 30)
        steps = [note for note in cluster.notes() if gone < note.at < gone + 20]
        server.restart()
        # The whole time through, with room for a machine that is busy with other things.
        assert max(note.at for note in steps) > gone + 15
        assert max(note.step for note in steps) > 100
        cluster.end_training()
        cluster.finish()
        assert cluster.exit_codes() == {EXIT_DONE}
        assert cluster.round == 1, "training was interrupted"


def test_two_agents_race_for_the_first_round(tmp_path: Path, endpoint: str) -> None:
    with Cluster(tmp_path, endpoint, _STEPS, bounds=(1, 2), options=_RACE) as cluster:
        cluster.start(2)
        cluster.wait_for_steps(25)
        cluster.end_training()
        cluster.finish()
        assert cluster.exit_codes() == {EXIT_DONE}


_QUICK = ("--last-call", "0.5")
_SHORT_LEASE = ("--lease-ttl", "1")
_RACE = ("--last-call", "0")
