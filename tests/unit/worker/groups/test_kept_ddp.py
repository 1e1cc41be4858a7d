"""``elastic.ddp``: one wrapper that averages over whichever ranks a round has."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy as copy_of
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic
from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context
from tests.ranks import run_ranks, values
from tests.unit.worker.groups.roads import begin_in_place, meet, on_ranks, place, regrouping


def _model() -> torch.nn.Sequential:
    """Several buckets' worth of layers would be slow; two layers have an order at least."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Linear(3, 1, bias=False))
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    return model


def averages_in_three_rounds(port: int, *, road: str, early: bool, hook: bool) -> tuple[Any, ...]:
    """Ranks 0 and 1, then all three, then 1 and 2: two steps in each round.

    Args:
        port: of the store.
        road: how the ranks regroup.
        early: the wrapper is made before any round.
        hook: gradients are reduced by a hook of the script's.

    Returns:
        The averages of what ranks put in; how many wrappers there were; how often a forward hook
        was called; whether the wrapper still evaluates where it did before.
    """
    me, test = begin_in_place(port)
    here = regrouping(road)
    model = _model()
    wrappers, averages, calls = set(), [], []
    if early:
        first = elastic.ddp(model)
        wrappers.add(first)
        first.register_forward_hook(lambda *_: calls.append(1))
        first.eval()
    for number, size in ((1, 2), (2, 3), (3, 2)):
        rank = me if number < 3 else me - 1
        if not 0 <= rank < size or (number == 1 and me == 2):
            continue
        ranks = here.ranks(place(port, size, rank=rank, number=number))
        ranks.build()
        context().enter(number, rank, "life")
        wrapped = first if early else elastic.ddp(model)
        wrappers.add(wrapped)
        if hook:
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        for _ in range(2):
            model.zero_grad()
            wrapped(torch.full((4, 1), float(me))).sum().backward()
            gradient = model[0].weight.grad
            assert gradient is not None
            averages.append(round(gradient[0].item() / 4, 3))
        meet(test, f"round {number}", size)
        ranks.take_apart()
    return averages, len(wrappers), len(calls), not wrappers.pop().training


@pytest.mark.parametrize(("early", "hook"), [(True, False), (False, False), (False, True)])
def test_one_wrapper_averages_over_all_ranks_there_are(road: str, early: bool, hook: bool) -> None:
    found = on_ranks(3, averages_in_three_rounds, road=road, early=early, hook=hook)
    expected = [[0.5, 0.5, 1.0, 1.0], [0.5, 0.5, 1.0, 1.0, 1.5, 1.5], [1.0, 1.0, 1.5, 1.5]]
    averages, wrappers, calls, evaluates = zip(*found, strict=True)
    assert [*averages] == expected
    assert wrappers == (1, 1, 1)
    assert calls == ((4, 6, 4) if early else (0, 0, 0))
    assert evaluates == (early,) * 3


def test_a_wrapper_that_is_used_before_the_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context(), "was_in_place", False)
    wrapped = elastic.ddp(torch.nn.Linear(1, 1))
    assert isinstance(wrapped, DistributedDataParallel)
    assert [name for name, _ in wrapped.named_parameters()] == ["module.weight", "module.bias"]
    for use in (partial(wrapped, torch.ones(1, 1)), wrapped.no_sync):
        with pytest.raises(UsageError, match=r"can be used inside of train\(world\) only"):
            use()
    for copy in (copy_of, pickle.dumps):
        with pytest.raises(UsageError, match="copy or save the model itself"):
            copy(wrapped)


def test_after_the_run_it_is_the_model_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1, 1)
    wrapped = elastic.ddp(model)
    monkeypatch.setattr(context(), "was_in_place", True)
    assert wrapped(torch.ones(1, 1)).item() == model(torch.ones(1, 1)).item()


def test_what_cannot_be_set_up_twice_is_refused() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(UsageError, match="mixed_precision"):
        elastic.ddp(model, mixed_precision=object())
    with pytest.raises(UsageError, match="give it the model in it"):
        elastic.ddp(elastic.ddp(model))


def takes_other_options() -> list[bool]:
    """What a wrapper does with the options of each call."""
    model = torch.nn.Linear(1, 1)
    calls: tuple[dict[str, Any], ...] = ({}, {"find_unused_parameters": True}, {})
    assert dist.get_world_size() == 2
    found = []
    for options in calls:
        wrapped = elastic.ddp(model, **options)
        wrapped(torch.ones(1, 1)).sum().backward()
        found.append(wrapped.find_unused_parameters)
    return found


def test_the_options_of_the_last_call_count() -> None:
    assert values(run_ranks(2, takes_other_options)) == [[False, True, False]] * 2


def is_used_after_the_last_round(port: int, *, road: str) -> str:
    """What a wrapper says when the groups have ended, and whether it works when compiled before."""
    me, test = begin_in_place(port)
    here = regrouping(road)
    wrapped = elastic.ddp(_model())
    compiled = torch.compile(wrapped, backend="eager")
    ranks = here.ranks(place(port, 2, rank=me))
    ranks.build()
    context().enter(1, me, "life")
    compiled(torch.ones(4, 1)).sum().backward()
    meet(test, "used", 2)
    ranks.take_apart()
    here.close()
    try:
        wrapped(torch.ones(4, 1))
    except UsageError as error:
        return str(error)
    return ""


def test_a_wrapper_that_is_used_after_the_last_round_says_so(road: str) -> None:
    said = on_ranks(2, is_used_after_the_last_round, road=road)
    assert all("inside of train(world) only" in one for one in said)


class Norm(torch.nn.Module):
    """With a buffer, which ``DistributedDataParallel`` gives to all ranks before each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) + self.seen


def reduces_once(samples: int) -> tuple[Any, ...]:
    """The gradient of a step of one piece and of several, and how often it was reduced."""
    found: list[Any] = []
    for at_once in (None, 2):
        model = Norm()
        torch.nn.init.ones_(model.layer.weight)
        wrapped = elastic.ddp(model)
        reductions: list[int] = []

        def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch wants no strings
            state.append(1)
            return default_hooks.allreduce_hook(None, bucket)

        wrapped.register_comm_hook(reductions, hook)
        loader = DataLoader(torch.arange(1.0, samples + 1)[:, None], samples, at_once=at_once)
        for step in loader.steps(steps=2):
            model.zero_grad()
            reductions.clear()
            for piece in step:
                step.backward(wrapped(piece).mean())
            assert model.layer.weight.grad is not None
            found.append((step.pieces, len(reductions), model.layer.weight.grad.item()))
    return tuple(found)


@pytest.mark.parametrize("samples", [10, 7])
def test_pieces_have_the_gradients_of_one_and_are_reduced_once(samples: int) -> None:
    mean = pytest.approx((samples + 1) / 2)
    pieces = math.ceil(math.ceil(samples / 2) / 2)
    expected = ((1, 1, mean), (1, 1, mean), (pieces, 1, mean), (pieces, 1, mean))
    assert values(run_ranks(2, reduces_once, samples)) == [expected] * 2


def evaluates_alone() -> tuple[float, float]:
    """What the model says on each rank; only rank 0 asks a second time."""
    model = Norm()
    torch.nn.init.ones_(model.layer.weight)
    torch.nn.init.zeros_(model.layer.bias)
    rank = dist.get_rank()
    wrapped = elastic.ddp(model)
    model.seen.fill_(rank)
    with torch.no_grad():
        once = wrapped(torch.ones(1, 1)).item()
        again = wrapped(torch.ones(1, 1)).item() if rank == 0 else once
    dist.barrier()
    return once, again


def test_without_gradients_it_is_the_model_itself_and_a_rank_may_be_alone() -> None:
    assert values(run_ranks(2, evaluates_alone)) == [(1.0, 1.0), (2.0, 2.0)]


def begins_with(in_place: bool) -> float:
    """A parameter of a model that differs between ranks, once it is used to train."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, float(dist.get_rank()))
    context().in_place = in_place
    ddp = elastic.ddp(model)
    if dist.get_rank() == 0:  # alone: nothing meets the others yet
        elastic.ddp(model)
    ddp(torch.ones(1, 1))
    return model.weight.item()


@pytest.mark.parametrize("in_place", [True, False])
def test_ranks_are_made_alike_where_nobody_else_does(in_place: bool) -> None:
    assert values(run_ranks(2, begins_with, in_place)) == [0.0, 1.0 if in_place else 0.0]
