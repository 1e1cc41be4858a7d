"""The world as a launcher or the agent describes it, and as libraries find it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_runtime.protocol.messages import Enter
from elastic_runtime.worker.world import World

if TYPE_CHECKING:
    import pytest


def test_without_a_launcher_a_process_is_alone() -> None:
    assert World.of_environment({}) == World(0, 1, 0, 1, 0, 1, 0)
    assert World.of_environment({"RANK": ""}).rank == 0


def test_a_launcher_describes_the_world_in_the_environment() -> None:
    environ = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
    }
    assert World.of_environment(environ) == World(5, 8, 1, 4, 1, 2, 0)


def test_libraries_find_the_present_ranks_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "99")
    monkeypatch.setenv("LOCAL_RANK", "1")  # that of the process, which does not change
    world = World(5, 8, 1, 4, 1, 2, 7)
    world.publish()
    found = World.of_environment(os.environ)
    assert (found.rank, found.size, found.local_size) == (5, 8, 4)
    assert (found.node_rank, found.nodes) == (1, 2)


def test_the_agent_orders_a_world() -> None:
    order = Enter(
        round=7,
        rank=5,
        world=8,
        local_rank=1,
        local_world=4,
        group_rank=1,
        group_world=2,
        host="h",
        port=1,
        key="k",
        spares=[],
    )
    assert World.of_order(order) == World(5, 8, 1, 4, 1, 2, 7)
