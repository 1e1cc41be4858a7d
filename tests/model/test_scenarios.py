"""A fault leads to the next round at once: no lease, no last call is waited for by accident.

Time is simulated, so that these are no measurements: each hop takes at most 2.5 ms here, and what
is asserted is that nothing but hops, one probe's pause and the workers' own end lies in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.protocol import records
from tests.model.clockwork import Clockwork
from tests.model.schedule import POLICY
from tests.model.store import TTL
from tests.model.world import World, key_of

if TYPE_CHECKING:
    from tests.model.node import Node

STOP = 0.01  # workers need this long to end
SOON = 0.15


class _Prompt(Clockwork):
    """Nothing is slow by chance."""

    def hop(self) -> float:
        return 0.0005 + 0.002 * self.random.random()

    def within(self, low: float, high: float) -> float:
        return min(high, low + STOP)

    def chance(self, probability: float) -> bool:
        return False


class _Scene:
    """A job of some nodes, all of them in round 1."""

    def __init__(self, nodes: int, *, high: int = 0, low: int = 1, seed: int = 0) -> None:
        self.clock = _Prompt(seed)
        policy = replace(POLICY, min_nodes=low, max_nodes=high or nodes, entry="train.py")
        self.world = World(self.clock, policy=policy, work=1.0, reports_steps=True)
        self.world.not_before = float("inf")
        self.nodes = [self.world.add() for _ in range(nodes)]
        self.until(lambda: self.running(1) == nodes, 30.0)

    def until(self, condition: object, limit: float) -> float:
        """Runs until the condition holds; returns how long that took."""
        begun = self.clock.now
        assert callable(condition)
        self.clock.run(begun + limit, condition)
        assert condition(), f"not within {limit} s"
        return self.clock.now - begun

    def passes(self, seconds: float) -> None:
        """Nothing is done for so long."""
        self.clock.run(self.clock.now + seconds, lambda: False)

    def loses(self, node: Node, *, silent: bool = False) -> list[Node]:
        """A node dies, or falls silent, and another one hears of it; returns the others."""
        others = [other for other in self.ranked() if other is not node]
        if silent:
            node.pause()
        else:
            node.crash()
        others[0].later(0.005, others[0].agent.worker_hears_of_loss, 1)
        return others

    def running(self, number: int) -> int:
        """How many nodes run workers of this round."""
        return sum(len(who) for key, who in self.world.workers.items() if key[0] == number)

    def whole(self, size: int) -> bool:
        """Whether a group of this size is whole."""
        return any(len(key[2]) == size for key in self.world.whole_since)

    def ranked(self) -> list[Node]:
        """The nodes of the present round, in rank order."""
        (key,) = self.world.whole_since
        return [self.world.by_uuid[uuid] for uuid in key[2]]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_death_of_a_node_is_followed_at_once(victim: int) -> None:
    scene = _Scene(3)
    others = scene.loses(scene.ranked()[victim])
    assert scene.until(lambda: scene.whole(2), 5.0) < SOON
    assert scene.ranked() == others


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_worker_that_fails_is_followed_at_once(victim: int) -> None:
    scene = _Scene(3)
    before = scene.ranked()
    before[victim].agent.worker_fails(records.FAILED, echo=False)
    assert scene.until(lambda: scene.running(2) == 3, 5.0) < SOON
    assert scene.ranked() == before


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_node_that_is_asked_to_leave_is_followed_at_once(victim: int) -> None:
    scene = _Scene(3)
    node = scene.ranked()[victim]
    node.agent.sigterm()
    assert scene.until(lambda: scene.whole(2), 5.0) < SOON
    assert not node.alive
    assert scene.world.exits == {node.name: "left"}


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("how", ["dies", "falls silent", "leaves"])
def test_at_the_minimum_a_replacement_is_let_in(victim: int, how: str) -> None:
    """It comes when the lease of the other is over, as one that is started by hand does."""
    scene = _Scene(3, low=3)
    node = scene.ranked()[victim]
    others = [other for other in scene.ranked() if other is not node]
    if how == "leaves":
        node.agent.sigterm()
    else:
        scene.loses(node, silent=how == "falls silent")
    scene.passes(3 * TTL)
    assert not scene.running(2)
    scene.world.add()
    scene.until(lambda: scene.running(2) == 3, 5.0)
    assert scene.ranked()[:2] == others


def test_a_silent_node_is_followed_when_its_lease_ends() -> None:
    scene = _Scene(3)
    node = scene.ranked()[1]
    scene.passes(POLICY.settle)
    node.pause()
    assert scene.until(lambda: scene.whole(2), 5.0) < TTL + SOON


def test_the_first_round_of_a_full_world_waits_for_nobody() -> None:
    scene = _Scene(3)
    assert scene.clock.now < SOON


def test_the_first_round_of_others_waits_for_the_last_call() -> None:
    scene = _Scene(2, high=3)
    assert POLICY.timeouts.last_call < scene.clock.now < POLICY.timeouts.last_call + SOON


def test_joiners_are_gathered_then_taken_in() -> None:
    scene = _Scene(2, high=5)
    scene.world.add()
    scene.passes(POLICY.timeouts.join_batch / 2)
    scene.world.add()
    assert scene.until(lambda: scene.whole(4), 5.0) < POLICY.timeouts.join_batch + SOON
    assert scene.world.seals == 2


def test_a_joiner_that_fills_the_world_is_taken_in_at_once() -> None:
    scene = _Scene(2, high=3)
    scene.passes(1.0)
    scene.world.add()
    assert scene.until(lambda: scene.whole(3), 5.0) < SOON


def test_a_spare_steps_in_at_once() -> None:
    scene = _Scene(3, low=3)
    spare = scene.world.add()
    scene.passes(1.0)
    assert spare.agent.phase == "waiting"
    scene.loses(scene.ranked()[0])
    assert scene.until(lambda: scene.whole(3), 5.0) < SOON
    assert scene.ranked()[2] is spare


def test_a_new_job_after_a_crash_of_all_does_not_wait() -> None:
    scene = _Scene(2)
    for node in scene.nodes:
        node.crash()
    scene.passes(5.0)  # their leases have ended
    for _ in range(2):
        scene.world.add()
    assert scene.until(lambda: scene.whole(2), 5.0) < SOON
    assert min(key_of(sealed)[0] for sealed in list(scene.world.rounds.values())[1:]) == 2


def test_all_leave_at_once_when_the_script_is_through() -> None:
    scene = _Scene(3)
    scene.world.release(scene.clock.now)
    assert scene.until(lambda: not scene.world.living(), 5.0) < SOON
    assert set(scene.world.exits.values()) == {"done"}
