"""Models of which each rank holds another part are refused before a step counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from elastic_runtime.errors import UsageError
from elastic_runtime.training.state import State
from elastic_runtime.worker.recovery.replica_check import ReplicaCheck
from tests.ranks import Outcome, kill_self, run_ranks, values
from tests.unit.parts.small_job import begun


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def _started(model: nn.Module, optim: torch.optim.Optimizer) -> State:
    state = State(model=model, optim=optim).keep_in_memory()
    state._replica_check = ReplicaCheck(state._parts, state._modules, dist.group.WORLD)
    return begun(state)


def _train(kind: str, steps: int = 3) -> int:
    """Some steps; returns how many were committed before somebody objected."""
    rank = dist.get_rank()
    model = _net()
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    state = _started(model, optim)
    ddp: nn.Module = model if kind in ("experts", "local") else DistributedDataParallel(model)
    for step in range(steps):
        optim.zero_grad()
        torch.manual_seed(10 * step + rank)
        loss = ddp(torch.randn(16, 4)).square().mean()
        if kind != "idle" or step:
            loss.backward()
        if kind == "experts":  # what they share is averaged, what is theirs alone is not
            dist.all_reduce(model[0].weight.grad)
            dist.all_reduce(model[0].bias.grad)
        optim.step()
        if kind == "rounding" and rank:
            with torch.no_grad():
                model[0].weight.mul_(1 + 1e-6)
        if kind == "local":
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter)
                    parameter /= dist.get_world_size()
        try:
            state.commit()
        except UsageError:
            assert state.step == step  # none has counted
            raise
    return state.step


@pytest.mark.parametrize("kind", ["averaged", "rounding", "local", "idle"])
def test_a_model_that_all_ranks_share_is_let_through(kind: str) -> None:
    assert values(run_ranks(2, _train, kind)) == [3, 3]


def _refused(outcome: Outcome, what: str) -> bool:
    """Whether a rank ended with a UsageError that says what is wrong, and what to do."""
    remedy = "in_place=False"
    return outcome.error == "UsageError" and what in outcome.text and remedy in outcome.text


def test_experts_of_equal_names_are_refused_at_the_first_commit() -> None:
    outcomes = run_ranks(2, _train, "experts")
    what = "model.2.weight has other gradients on rank 1"
    assert [_refused(one, what) for one in outcomes] == [True, True], outcomes


def _late() -> Any:
    """Experts that no sample comes to in the first steps."""
    model = _net()
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    state = _started(model, optim)
    for step in range(9):
        optim.zero_grad()
        if step >= 2:
            model[2].weight.grad = torch.full((1, 8), 1.0 + dist.get_rank())
        optim.step()
        try:
            state.commit()
        except UsageError:
            return state.step
    return None


def test_experts_that_are_idle_at_first_are_refused_soon() -> None:
    assert values(run_ranks(2, _late)) == [3, 3]


def _sharded(kind: str) -> None:
    model = _net()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    state = None
    if kind == "fsdp2":
        fully_shard(model, mesh=mesh)
    elif kind == "late":
        state = _started(model, torch.optim.SGD(model.parameters(), lr=0.1))
        fully_shard(model, mesh=mesh)
    elif kind == "tensor":
        distribute_module(model, mesh)
    elif kind == "wrapped":
        inner = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        State(model=nn.Sequential(inner)).keep_in_memory()
    elif kind == "part":
        whole = distribute_tensor(torch.ones(4), mesh, [Replicate()])
        model.register_parameter("extra", nn.Parameter(whole))
    if state is None:
        State(model=model).keep_in_memory()
    else:
        try:
            state.commit()
        finally:
            assert state.step == 0


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("fsdp2", "model.0.weight is a DTensor"),
        ("late", "model.0.weight is a DTensor"),
        ("tensor", "model.0.weight is a DTensor"),
        ("part", "model.extra is a DTensor"),
        ("wrapped", "model.0 is wrapped by FSDP"),
    ],
)
def test_what_shows_at_once_is_refused_at_once(kind: str, what: str) -> None:
    outcomes = run_ranks(2, _sharded, kind)
    assert [_refused(one, what) for one in outcomes] == [True, True], outcomes


def _staged(in_place: bool) -> int:
    """Each rank holds a layer of its own, as in a pipeline."""
    rank = dist.get_rank()
    model = nn.ModuleDict({f"layer{rank}": nn.Linear(4, 4)})
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State(model=model, optim=optim)
    if in_place:
        state.keep_in_memory()
    else:
        state.watch_optimizers()
    state._replica_check = ReplicaCheck(state._parts, state._modules, dist.group.WORLD)
    begun(state)
    model[f"layer{rank}"](torch.randn(16, 4)).square().mean().backward()
    optim.step()
    state.commit()
    return state.step


def test_stages_of_a_pipeline_are_refused_in_place_only() -> None:
    assert values(run_ranks(2, _staged, False)) == [1, 1]
    outcomes = run_ranks(2, _staged, True)
    assert all(_refused(one, "rank 1 has no model.layer0.weight") for one in outcomes), outcomes


def _lost() -> int:
    """The other rank is gone when the ranks are to be compared."""
    model = _net()
    state = _started(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dist.barrier()  # before, the other one may still connect
    if dist.get_rank():
        kill_self()
    state.commit()
    return state.step


def test_a_rank_that_is_lost_in_between_costs_no_step() -> None:
    assert run_ranks(2, _lost)[0] == Outcome(value=1)
