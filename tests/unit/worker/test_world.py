"""The world as a launcher or the agent describes it, and what is told of the breaks between two."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

from elastic_runtime.protocol.messages import Enter
from elastic_runtime.worker import round_breaks
from elastic_runtime.worker.round_breaks import begin_break, end_break, use_breaks
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


# What is told of the breaks between rounds


class Recorder:
    def __init__(self) -> None:
        self.told: list[object] = []

    def settle(self, *, first: bool) -> None:
        self.told.append("first" if first else "settle")

    def prepare(self, rank: int, world: int) -> None:
        self.told.append((rank, world))


def test_all_that_live_are_told_of_a_break_and_of_its_end() -> None:
    before = len(round_breaks._all)
    one, other = Recorder(), Recorder()
    use_breaks(one)
    use_breaks(other)
    begin_break()
    end_break(1, 3)
    assert one.told == other.told == ["settle", (1, 3)]
    del other
    gc.collect()
    begin_break(first=True)
    assert one.told[2:] == ["first"]
    assert len(round_breaks._all) == before + 1, "what is gone is not kept"
