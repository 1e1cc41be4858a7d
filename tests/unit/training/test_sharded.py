"""A State of a sharded model: goes on in any world in the restart form, and is refused in place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import elastic_runtime as elastic
from elastic_runtime.training import run_loop
from tests.ranks import run_ranks, values

if TYPE_CHECKING:
    from pathlib import Path


def trained(folder: str, epochs: int, in_place: bool = False) -> tuple[int, float, list[float]]:
    """The step, the sum of all losses so far, and all weights, of a model that is sharded."""
    run_loop._ran = False
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    inputs = torch.randn(11, 2).double()
    if dist.is_initialized():
        fully_shard(model)
    else:
        os.environ.pop("RANK", None)
    optim = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = elastic.DataLoader(inputs, global_batch_size=4, at_once=2)
    state = elastic.State(model=model, optim=optim, loader=loader, sum=0.0)
    state.checkpoints(folder)

    def train(world: elastic.World) -> None:
        for step in loader.steps(epochs=epochs):
            loss = torch.zeros(())
            for piece in step:
                part = (model(piece) - piece.sum(dim=1, keepdim=True)).square().mean()
                step.backward(part)
                loss += part.detach() * step.weight / world.size
            if world.size > 1:
                dist.all_reduce(loss)
            state.sum += float(loss)
            optim.step()
            optim.zero_grad()
            state.commit()

    if in_place:
        dist.destroy_process_group()
    elastic.run(train, state, in_place=in_place)
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return state.step, state.sum, [value for p in whole for value in p.flatten().tolist()]


def test_a_sharded_model_goes_on_in_another_world(tmp_path: Path) -> None:
    [alone] = values(run_ranks(1, trained, str(tmp_path / "alone"), 6))
    for world, epochs in ((2, 2), (3, 4), (1, 6)):
        ranks = values(run_ranks(world, trained, str(tmp_path / "sharded"), epochs))
        assert len({rank[:2] for rank in ranks}) == 1
    assert ranks[0][0] == alone[0] == 18
    assert ranks[0][1] == pytest.approx(alone[1])
    assert ranks[0][2] == pytest.approx(alone[2])


def test_in_place_it_is_refused_in_one_sentence(tmp_path: Path) -> None:
    ended = run_ranks(2, trained, str(tmp_path), 1, True)
    assert [one.error for one in ended] == ["UsageError"] * 2
    assert "is a DTensor; models that are spread over ranks" in ended[0].text
    assert "in_place=False" in ended[0].text
