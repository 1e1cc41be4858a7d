"""A fragment's change and its exchange with other ranks; and a rank's own model of several."""

from __future__ import annotations

import copy
from math import inf, nan

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.diloco.fragment import Flight, Fragment, NothingToAverage
from elastic_runtime.diloco.pairing import Pair, pair_up
from elastic_runtime.diloco.replica import Replica
from elastic_runtime.training.state import State
from tests.ranks import run_ranks, values
from tests.unit.diloco.small_net import row


def pair(name: str, common: list[float], own: list[float]) -> Pair:
    """A parameter of the common model and of a rank's own."""
    return Pair(name, nn.Parameter(torch.tensor(common)), nn.Parameter(torch.tensor(own)))


def fragment() -> Fragment:
    """Two parameters of different forms, and a buffer."""
    table = Pair("w", nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.zeros(2, 2)))
    mean = Pair("mean", torch.tensor([10.0]), torch.tensor([4.0]))
    return Fragment([table, pair("b", [5.0], [2.0])], [mean])


def nothing() -> None:
    """While an exchange is under way there is nothing else to do."""


def test_a_change_is_how_much_less_a_ranks_own_values_are() -> None:
    change = fragment().change()
    assert change.tolist() == [1.0, 1.0, 1.0, 1.0, 3.0, 6.0]
    assert not change.requires_grad


@pytest.mark.parametrize("common", [torch.float32, torch.bfloat16])
def test_a_change_of_a_smaller_type_is_sent_in_float32(common: torch.dtype) -> None:
    """And its gradient has the type of the common parameter."""
    theirs = nn.Parameter(torch.tensor([3.0, 1.0], dtype=common))
    ours = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    part = Fragment([Pair("w", theirs, ours)], [])
    change = part.change()
    assert (change.dtype, change.tolist()) == (torch.float32, [2.0, -1.0])
    part.offer(change)
    assert theirs.grad is not None and theirs.grad.dtype == common


def test_what_is_infinite_in_both_models_has_not_changed() -> None:
    mask = Pair("mask", torch.tensor([0.0, -inf, inf]), torch.tensor([0.0, -inf, inf]))
    change = Fragment([pair("b", [5.0], [2.0])], [mask]).change()
    assert change.tolist() == [3.0, 0.0, 0.0, 0.0]
    other = Pair("mask", torch.tensor([0.0, -inf]), torch.tensor([nan, 1.0]))
    assert not torch.isfinite(Fragment([], [other]).change()).any()


def test_a_replica_of_fewer_bits_takes_none_from_the_common_model() -> None:
    theirs = nn.Parameter(torch.tensor([0.1234567, 1.0]))
    ours = nn.Parameter(theirs.detach().to(torch.bfloat16))
    assert Fragment([Pair("w", theirs, ours)], []).change().tolist() == [0.0, 0.0]


def test_counts_become_the_largest_ones() -> None:
    count = Pair("count", torch.tensor(3), torch.tensor(7))
    flags = Pair("flags", torch.tensor([False, True]), torch.tensor([True, False]))
    part = Fragment([], [], [count, flags])
    assert part.reached().tolist() == [7, 1, 0]
    part.set_counts(torch.tensor([9, 1, 1]))
    assert (count.common.item(), flags.common.tolist()) == (9, [True, True])
    part.adopt()
    assert (count.own.item(), flags.own.tolist()) == (9, [True, True])


def test_complex_parameters_change_in_both_of_their_parts() -> None:
    both = Pair("w", nn.Parameter(torch.tensor([1 + 2j])), nn.Parameter(torch.tensor([3 + 5j])))
    part = Fragment([both, pair("b", [5.0], [2.0])], [])
    assert part.change().tolist() == [-2.0, -3.0, 3.0]
    part.offer(part.change())
    assert both.common.grad is not None
    assert both.common.grad.tolist() == [-2 - 3j]


def test_the_mean_change_becomes_gradients_of_parameters_and_values_of_buffers() -> None:
    ours = fragment()
    ours.offer(torch.arange(6.0))
    table, bias = (each.common for each in ours.parameters)
    assert table.grad is not None
    assert bias.grad is not None
    assert (table.grad.tolist(), bias.grad.tolist()) == ([[0.0, 1.0], [2.0, 3.0]], [4.0])
    assert (table.tolist(), bias.tolist()) == ([[1.0, 1.0], [1.0, 1.0]], [5.0])
    assert ours.buffers[0].common.tolist() == [5.0]
    ours.drop_gradients()
    assert (table.grad, bias.grad) == (None, None)


def test_a_rank_takes_the_common_values_over() -> None:
    """A parameter may keep a share of its own, and a buffer none."""
    ours = fragment()
    ours.adopt(mix=0.25)
    assert [each.own.tolist() for each in ours.parameters] == [[[0.75] * 2] * 2, [4.25]]
    assert ours.buffers[0].own.tolist() == [10.0]
    ours.adopt()
    assert [each.own.tolist() for each in ours.parameters] == [[[1.0, 1.0], [1.0, 1.0]], [5.0]]
    assert ours.buffers[0].own.tolist() == [10.0]
    ours.parameters[1].own.data.fill_(0.0)
    assert ours.parameters[1].common.tolist() == [5.0], "both have memory of their own"


def test_a_rank_alone_gets_its_own_change_back_whatever_it_weighs() -> None:
    change = torch.tensor([1.0, -2.0])
    for weight in (1.0, 0.5):
        assert Flight(change, weight, None).wait(nothing).tolist() == [1.0, -2.0]
    assert change.tolist() == [1.0, -2.0]
    # Where nothing was trained nothing changes.
    assert Flight(change, 0.0, None).wait(nothing).tolist() == [0.0, 0.0]
    for diverged in (nan, inf, -inf):
        flight = Flight(torch.tensor([1.0, diverged]), 1.0, None)
        assert not flight.finite
        with pytest.raises(NothingToAverage, match="the training has diverged: lower"):
            flight.wait(nothing)


def exchange(
    changes: list[list[float]], weights: list[float], reached: list[list[int]]
) -> tuple[list[float], list[int]]:
    """What this rank gets: the mean change, and the counts of all."""
    rank = dist.get_rank()
    mine = torch.tensor(reached[rank])
    flight = Flight(torch.tensor(changes[rank]), weights[rank], dist.group.WORLD, mine)
    mean = flight.wait(nothing).tolist()
    assert flight.furthest is not None
    return mean, flight.furthest.tolist()


def test_what_a_rank_weighs_is_what_it_counts_and_the_largest_count_is_that_of_all() -> None:
    changes, reached = [[1.0, 0.0], [4.0, 8.0], [9.0, 9.0]], [[80, 1], [76, 5], [0, 0]]
    answers = values(run_ranks(3, exchange, changes, [1.0, 0.5, 0.0], reached))
    assert answers == [(pytest.approx([2.0, 8 / 3]), [80, 5])] * 3


# A rank's own model: its exchanges, its weight, and what it takes over


class Models:
    """A common model of ones, a replica of zeros, and their optimizers."""

    def __init__(self, fragments: int = 1, mix: float = 0.0) -> None:
        self.common = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        self.own = copy.deepcopy(self.common)
        self.fill(1.0, 0.0)
        outer = torch.optim.SGD(self.common.parameters(), lr=1.0)
        inner = torch.optim.AdamW(self.own.parameters(), lr=0.1)
        pairing = pair_up("DiLoCo", State(model=self.common, outer=outer), self.own, inner, outer)
        self.replica = Replica(pairing, inner, outer, fragments, mix)

    def fill(self, common: float, own: float) -> None:
        """Gives all parameters these values."""
        with torch.no_grad():
            for theirs, ours in zip(self.common.parameters(), self.own.parameters(), strict=True):
                theirs.fill_(common)
                ours.fill_(own)

    def land(self, *turns: int) -> None:
        """A sync of these, after one inner step."""
        self.replica.stepped()
        for turn in turns:
            self.replica.send(turn, 1, None)
        self.replica.land(turns, nothing)


def test_what_was_sent_is_what_counts_and_it_is_sent_once() -> None:
    models = Models()
    models.replica.stepped()
    models.replica.send(0, 1, None)
    models.fill(1.0, 7.0)
    models.land(0)
    assert row(models.common) == [0.0] * 4
    assert all(each.grad is None for each in models.common.parameters())
    models.fill(1.0, 7.0)
    models.land(0)
    assert row(models.common) == [7.0] * 4, "after a sync it is sent again"


def test_what_is_under_way_when_the_world_changes_is_sent_again() -> None:
    models = Models()
    models.replica.stepped()
    models.replica.send(0, 1, None)
    models.replica.forget_step()
    models.fill(1.0, 3.0)
    models.land(0)
    assert row(models.common) == [3.0] * 4


def test_fragments_land_alone_or_together() -> None:
    models = Models(fragments=2)
    models.land(1)
    assert row(models.common) == [1.0, 1.0, 0.0, 0.0]
    models.replica.adopt((1,))
    models.fill(1.0, 0.0)
    models.land(0, 1)
    assert row(models.common) == [0.0] * 4


def test_a_replica_takes_over_what_was_synchronized_and_keeps_its_share() -> None:
    models = Models(fragments=2, mix=0.25)
    models.replica.adopt((0,))
    assert row(models.own) == [0.75, 0.75, 0.0, 0.0]
    models.replica.begin()
    assert row(models.own) == [1.0] * 4
