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


def test_libraries_find_the_ranks_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "99")
    monkeypatch.setenv("LOCAL_RANK", "1")  # that of the process, which does not change
    World(5, 8, 1, 4, 1, 2, 7).publish()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("5", "8")
    assert World.of_environment(os.environ) == World(5, 8, 1, 4, 1, 2, 0), "as of a launcher"


def test_the_agent_orders_a_world() -> None:
    ranks = {"rank": 5, "world": 8, "local_rank": 1, "local_world": 4}
    nodes = {"group_rank": 1, "group_world": 2}
    order = Enter(round=7, **ranks, **nodes, host="h", port=1, key="k", spares=[])
    assert World.of_order(order) == World(5, 8, 1, 4, 1, 2, 7)
