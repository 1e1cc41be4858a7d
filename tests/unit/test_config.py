"""Settings that exclude each other."""

from __future__ import annotations

import pytest

from elastic_runtime.config import FENCE_REST, SCRIPT, Endpoint, Entry, JobConfig, Timeouts
from elastic_runtime.errors import UsageError
from elastic_runtime.rendezvous.core.store_outage import FENCE_SHARE

CONFIG = JobConfig(Entry(SCRIPT, "train.py"), Endpoint("c10d", ("h:1",)), "r")


def test_what_is_left_of_the_fence_is_what_a_node_without_the_store_leaves() -> None:
    assert pytest.approx(1.0) == FENCE_SHARE + FENCE_REST


@pytest.mark.parametrize("grace", [0.2, 1.2])
def test_a_fence_leaves_time_to_stop_the_workers(grace: float) -> None:
    times = Timeouts(broken_grace=grace, fence=1000.0)
    shortest = times.shortest_fence
    assert shortest * (1.0 - FENCE_SHARE) >= grace + 1.0
    assert shortest >= times.lease_ttl + grace + 1.0
    CONFIG.with_(timeouts=Timeouts(broken_grace=grace, fence=shortest))
    with pytest.raises(UsageError, match=f"--fence-timeout is .*; give {shortest:g} s or more"):
        CONFIG.with_(timeouts=Timeouts(broken_grace=grace, fence=shortest - 0.1))
