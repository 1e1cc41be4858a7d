"""A fragment's change, what becomes of it, and its exchange with other ranks."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.diloco.fragment import Flight, Fragment, NothingToAverage
from elastic_runtime.diloco.pairing import Pair
from tests.ranks import run_ranks, values


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
    theirs = nn.Parameter(torch.tensor([3.0, 1.0], dtype=common))
    ours = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    change = Fragment([Pair("w", theirs, ours)], []).change()
    assert (change.dtype, change.tolist()) == (torch.float32, [2.0, -1.0])


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


def counted(reached: list[list[int]]) -> list[int] | None:
    """The counts of all ranks, beside an exchange."""
    mine = torch.tensor(reached[dist.get_rank()])
    flight = Flight(torch.zeros(2), 1.0, dist.group.WORLD, mine)
    flight.wait(nothing)
    return flight.furthest.tolist() if flight.furthest is not None else None


def test_the_largest_count_of_any_rank_is_that_of_all() -> None:
    assert values(run_ranks(2, counted, [[80, 1], [76, 5]])) == [[80, 5]] * 2


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


def test_a_gradient_has_the_type_of_the_common_parameter() -> None:
    half = Pair("w", nn.Parameter(torch.ones(2).half()), nn.Parameter(torch.zeros(2)))
    Fragment([half], []).offer(torch.tensor([1.0, 2.0]))
    assert half.common.grad is not None
    assert half.common.grad.dtype == torch.float16


def test_a_rank_takes_the_common_values_over() -> None:
    ours = fragment()
    ours.adopt()
    assert [each.own.tolist() for each in ours.parameters] == [[[1.0, 1.0], [1.0, 1.0]], [5.0]]
    assert ours.buffers[0].own.tolist() == [10.0]
    ours.parameters[1].own.data.fill_(0.0)
    assert ours.parameters[1].common.tolist() == [5.0], "both have memory of their own"


def test_a_parameter_keeps_a_share_of_its_own_and_a_buffer_none() -> None:
    ours = fragment()
    ours.adopt(mix=0.25)
    assert [each.own.tolist() for each in ours.parameters] == [[[0.75] * 2] * 2, [4.25]]
    assert ours.buffers[0].own.tolist() == [10.0]


def test_a_rank_alone_gets_its_own_change_back_whatever_it_weighs() -> None:
    change = torch.tensor([1.0, -2.0])
    assert Flight(change, 1.0, None).wait(nothing).tolist() == [1.0, -2.0]
    assert Flight(change, 0.5, None).wait(nothing).tolist() == [1.0, -2.0]
    assert change.tolist() == [1.0, -2.0]


def test_where_nothing_was_trained_nothing_changes() -> None:
    assert Flight(torch.tensor([1.0, -2.0]), 0.0, None).wait(nothing).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_rank_alone_that_has_diverged_has_nothing_to_average(value: float) -> None:
    flight = Flight(torch.tensor([1.0, value]), 1.0, None)
    assert not flight.finite
    with pytest.raises(NothingToAverage, match="the training has diverged: lower"):
        flight.wait(nothing)


def exchange(changes: list[list[float]], weights: list[float]) -> tuple[list[float], bool]:
    """What this rank gets, and whether its own change was finite."""
    rank = dist.get_rank()
    flight = Flight(torch.tensor(changes[rank]), weights[rank], dist.group.WORLD)
    return flight.wait(nothing).tolist(), flight.finite


def test_what_a_rank_weighs_is_what_it_counts() -> None:
    answers = values(run_ranks(3, exchange, [[1.0, 0.0], [4.0, 8.0], [9.0, 9.0]], [1.0, 0.5, 0.0]))
    assert answers == [(pytest.approx([2.0, 8 / 3]), True)] * 3


def test_a_rank_that_has_diverged_does_not_spoil_the_mean_of_the_others() -> None:
    answers = values(run_ranks(3, exchange, [[1.0, 2.0], [nan, 2.0], [3.0, 4.0]], [1.0] * 3))
    assert answers == [([2.0, 3.0], True), ([2.0, 3.0], False), ([2.0, 3.0], True)]


def test_all_ranks_learn_that_all_have_diverged() -> None:
    outcomes = run_ranks(2, exchange, [[nan], [inf]], [1.0, 1.0])
    assert [outcome.error for outcome in outcomes] == ["NothingToAverage"] * 2
