"""Faults in a row, drawn at random: training ends, and nothing is lost or left over.

``CHAOS_FAULTS`` says how many; let many come before a release.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.chaos.harness import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.fleet import Node
    from tests.etcd_server import EtcdServer

pytestmark = [pytest.mark.chaos, pytest.mark.etcd]

_FAULTS = int(os.environ.get("CHAOS_FAULTS", "10"))
_MOST = 3


@pytest.mark.timeout(60 + 20 * _FAULTS)
def test_many_faults_in_a_row(tmp_path: Path, etcd: EtcdServer) -> None:
    seed = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"CHAOS_SEED={seed}")  # shown when the test fails; set it to draw the same faults again
    draw = random.Random(seed)
    options = ("--lease-ttl", "1", "--last-call", "0.5")
    endpoint = f"etcd://{etcd.endpoint}"
    with Cluster(tmp_path, endpoint, 1 << 20, (1, _MOST), options) as cluster:
        cluster.start(_MOST + 1)  # one more, as a spare
        cluster.wait_for_steps(10, world=_MOST)
        for number in range(_FAULTS):
            if draw.random() < 0.5:
                cluster.wait_for_steps(1, world=_MOST)
            # None for a moment while the workers of a broken round are started again.
            members = cluster.wait(cluster.members, "a node that trains")
            victim = draw.choice(members)
            name = draw.choice(list(_strikes(cluster)) if len(members) > 1 else [_WORKER])
            print(f"fault {number}: {name}, {victim.name} of {len(members)}, step {cluster.step}")
            _strikes(cluster)[name](victim)
            cluster.wait_for_steps(draw.randrange(5, 25))
            if name != _WORKER:
                # It may have been stopped only; the next one joins whenever it is ready, so that
                # faults come upon joins as well.
                cluster.kill_node(victim)
                cluster.start()
        cluster.wait_for_steps(10, world=_MOST)
        cluster.end_training()
        cluster.finish()


_WORKER = "kill worker"


def _strikes(cluster: Cluster) -> dict[str, Callable[[Node], None]]:
    return {
        _WORKER: cluster.kill_worker,
        "kill agent": cluster.kill_agent,
        "kill node": cluster.kill_node,
        "stop node": cluster.stop_node,
        "ask to leave": cluster.ask_to_leave,
    }
