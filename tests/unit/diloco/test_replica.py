"""A rank's own model: its exchanges, its weight, and what it takes over."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.diloco.pairing import pair_up
from elastic_runtime.diloco.replica import Replica
from elastic_runtime.worker.state.training_state import State
from tests.ranks import run_ranks, values


class Models:
    """A common model of ones, a replica of zeros, and their optimizers."""

    def __init__(self, fragments: int = 1, mix: float = 0.0) -> None:
        self.common = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        self.own = copy.deepcopy(self.common)
        self.fill(1.0, 0.0)
        outer = torch.optim.SGD(self.common.parameters(), lr=1.0)
        self.inner = torch.optim.AdamW(self.own.parameters(), lr=0.1)
        state = State(model=self.common, outer=outer)
        pairing = pair_up("DiLoCo", state, self.own, self.inner, outer)
        self.replica = Replica(pairing, self.inner, outer, fragments, mix)

    def fill(self, common: float, own: float) -> None:
        """Gives all parameters these values."""
        with torch.no_grad():
            for theirs, ours in zip(self.common.parameters(), self.own.parameters(), strict=True):
                theirs.fill_(common)
                ours.fill_(own)

    def made(self, steps: int) -> None:
        """Counts inner steps."""
        for _ in range(steps):
            self.replica.stepped()


def row(model: nn.Module) -> list[float]:
    """The values of all parameters."""
    return [float(each.detach()) for each in model.parameters()]


def nothing() -> None:
    """There is nothing to do meanwhile."""


def test_an_outer_step_along_the_whole_change_leads_to_the_replica() -> None:
    models = Models()
    models.made(3)
    models.replica.send(0, 3, None)
    assert models.replica.land((0,), nothing)
    assert row(models.common) == [0.0] * 4
    assert all(each.grad is None for each in models.common.parameters())


def test_what_was_sent_is_what_counts_and_it_is_sent_once() -> None:
    models = Models()
    models.made(1)
    models.replica.send(0, 1, None)
    models.fill(1.0, 7.0)
    models.replica.send(0, 1, None)
    models.replica.land((0,), nothing)
    assert row(models.common) == [0.0] * 4
    models.fill(1.0, 7.0)
    models.made(1)
    models.replica.send(0, 1, None)
    models.replica.land((0,), nothing)
    assert row(models.common) == [7.0] * 4, "after a sync it is sent again"


def test_what_is_under_way_when_the_world_changes_is_sent_again() -> None:
    models = Models()
    models.made(1)
    models.replica.send(0, 1, None)
    models.replica.forget_step()
    models.fill(1.0, 3.0)
    models.replica.send(0, 1, None)
    models.replica.land((0,), nothing)
    assert row(models.common) == [3.0] * 4


def test_fragments_land_alone_or_together() -> None:
    models = Models(fragments=2)
    models.made(2)
    models.replica.send(1, 2, None)
    models.replica.land((1,), nothing)
    assert row(models.common) == [1.0, 1.0, 0.0, 0.0]
    models.replica.adopt((1,))
    models.fill(1.0, 0.0)
    models.made(1)
    for turn in (0, 1):
        models.replica.send(turn, 1, None)
    models.replica.land((0, 1), nothing)
    assert row(models.common) == [0.0] * 4


def test_a_replica_takes_over_what_was_synchronized_and_keeps_its_share() -> None:
    models = Models(fragments=2, mix=0.25)
    models.replica.adopt((0,))
    assert row(models.own) == [0.75, 0.75, 0.0, 0.0]
    models.replica.begin()
    assert row(models.own) == [1.0] * 4


def test_a_replica_that_has_diverged_begins_from_the_common_model_with_a_new_optimizer() -> None:
    (first, second) = values(run_ranks(2, diverges))
    assert first == (True, [0.0] * 4, [0.0] * 4, True)
    assert second == (False, [0.0] * 4, [0.0] * 4, False)


def diverges() -> tuple[bool, list[float], list[float], bool]:
    """Whether this rank counts, both models, and whether its optimizer has a state."""
    models = Models()
    for each in models.own.parameters():
        each.grad = torch.zeros_like(each)
    models.inner.step()
    models.fill(1.0, torch.nan if dist.get_rank() == 1 else 0.0)
    models.made(1)
    models.replica.send(0, 1, dist.group.WORLD)
    counts = models.replica.land((0,), nothing)
    return counts, row(models.common), row(models.own), bool(models.inner.state)


def weighs(steps: list[int]) -> list[float]:
    """The common model after a sync of ranks that were there for so many of 4 inner steps."""
    models = Models()
    rank = dist.get_rank()
    models.fill(1.0, float(rank))
    models.made(steps[rank])
    models.replica.send(0, 4, dist.group.WORLD)
    models.replica.land((0,), nothing)
    return row(models.common)


@pytest.mark.parametrize(("steps", "mean"), [([4, 4], 0.5), ([4, 1], 0.2), ([4, 0], 0.0)])
def test_a_rank_counts_for_as_much_as_it_has_trained(steps: list[int], mean: float) -> None:
    for found in values(run_ranks(2, weighs, steps)):
        assert found == pytest.approx([mean] * 4)
