"""When it is better to stop than to go on from nothing."""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.limits import LOST_STEPS_ALLOWED
from elastic_runtime.worker.peers import GlooGroups
from elastic_runtime.worker.recovery.common_state import EarlierRounds, StateRecovery
from elastic_runtime.worker.recovery.recovery_source import (
    MemoryCondition,
    RankStatus,
    StateLost,
    choose,
)
from elastic_runtime.worker.state.training_state import State
from elastic_runtime.worker.world import FollowsWorld, World
from tests.ranks import run_ranks

_NEW = RankStatus(0, MemoryCondition.NEW)


def _check(status: RankStatus, committed: int, *, start_over: bool = False) -> None:
    state = State(model=nn.Linear(1, 1))
    settling = StateRecovery(state, None, lambda *_, **__: None, start_over=start_over)
    settling._check_beginning(choose([status]), EarlierRounds("job", committed))


@pytest.mark.parametrize("committed", [-1, 0, LOST_STEPS_ALLOWED])
def test_a_job_that_has_committed_next_to_nothing_begins_again(committed: int) -> None:
    _check(_NEW, committed)


def test_nobody_falls_back_to_the_beginning_in_silence() -> None:
    with pytest.raises(UsageError, match=r"nothing is saved: 61 steps are lost.*start_over"):
        _check(_NEW, 61)
    _check(_NEW, 61, start_over=True)


def test_half_done_memory_is_nothing_to_go_on_from() -> None:
    dirty = RankStatus(61, MemoryCondition.DIRTY, round=1)
    with pytest.raises(UsageError, match="no rank holds a whole state any more"):
        _check(dirty, -1)
    # Processes that are new begin again.
    with pytest.raises(StateLost):
        _check(dirty, -1, start_over=True)


class _Part:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


class _OfAnotherLibrary(_Part):
    """Its methods have other arguments, as has the ``connect`` of Lightning's precision."""

    def enter(self) -> None:
        raise AssertionError("nobody of ours may call it")

    use_groups = connect = enter


class _Follower(_Part, FollowsWorld):
    world: World | None = None
    ranks: list[int] | None = None

    def enter(self, world: World) -> None:
        self.world, self.ranks = world, None

    def use_groups(self, gloo: GlooGroups) -> None:
        self.ranks = dist.get_process_group_ranks(gloo.group)


def _followed() -> tuple[World | None, list[int] | None]:
    part = _Follower()
    state = State(model=nn.Linear(1, 1), part=part, other=_OfAnotherLibrary())
    gloo = GlooGroups(dist.new_group(), dist.new_group, lambda: False)
    recovery = StateRecovery(state, None, lambda *_, **__: None, start_over=False)
    recovery.recover(gloo, World.of_environment(os.environ), EarlierRounds())
    return part.world, part.ranks


def test_only_parts_that_say_so_follow_the_world() -> None:
    for rank, outcome in enumerate(run_ranks(2, _followed)):
        assert outcome.value, outcome
        world, ranks = outcome.value
        assert (world.rank, world.size, ranks) == (rank, 2, [0, 1])
