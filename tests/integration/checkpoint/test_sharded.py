"""Models that are sharded themselves (FSDP2), and back to replicated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from tests.ranks import run_ranks, values

if TYPE_CHECKING:
    from pathlib import Path


def whole(tensor: torch.Tensor) -> list[float]:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().flatten().tolist()


def life(path: Path, sharded: bool, steps: int) -> tuple[int, list[list[float]]]:
    """Resumes, trains, saves; returns the step resumed at and the state found then."""
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    if sharded:
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    entries: dict[str, Any] = {"model": model, "optim": optimizer}
    ckpt = Checkpointer(path, entries)
    resumed = ckpt.resume()
    found = [
        whole(tensor)
        for parameter in model.parameters()
        for tensor in (parameter, *[v for _, v in sorted(optimizer.state[parameter].items())])
    ]
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 5)).square().mean().backward()
        optimizer.step()
        ckpt.step()
    ckpt.save()
    ckpt.close()
    return resumed, found


def reference(path: Path) -> list[list[float]]:
    """What plain DCP finds, without any code of ours."""
    import torch.distributed.checkpoint as dcp

    state = {
        f"{prefix}.{index}.{name}{part}": torch.zeros(shape)
        for index, rows, columns in ((0, 7, 5), (2, 3, 7))
        for name, shape in (("weight", (rows, columns)), ("bias", (rows,)))
        for prefix, part in (
            ("model", ""),
            ("optim.state.model", ".exp_avg"),
            ("optim.state.model", ".exp_avg_sq"),
        )
    }
    dcp.load(
        state,
        storage_reader=dcp.FileSystemReader(path),
        planner=dcp.DefaultLoadPlanner(flatten_state_dict=False),
    )
    return [tensor.flatten().tolist() for tensor in state.values()]


@pytest.mark.parametrize("sharded", [True, False])
def test_plain_dcp_reads_what_four_ranks_have_written(tmp_path: Path, sharded: bool) -> None:
    values(run_ranks(4, life, tmp_path, sharded, 2))
    (ours,) = values(run_ranks(1, life, tmp_path, False, 0))
    (found,) = values(run_ranks(1, reference, tmp_path / "step-2.term-1"))
    # Ours has the counter of steps as well.
    assert found == [values for values in ours[1] if len(values) > 1]


@pytest.mark.golden("sharded checkpoints go to any world")
def test_shards_go_to_any_world_and_to_a_replicated_model(tmp_path: Path) -> None:
    values(run_ranks(3, life, tmp_path, True, 2))
    two = values(run_ranks(2, life, tmp_path, True, 0))
    (one,) = values(run_ranks(1, life, tmp_path, False, 0))
    assert [resumed for resumed, _ in (*two, one)] == [2, 2, 2]
    assert two[0][1] == two[1][1] == one[1]
    assert len(one[1]) == 4 * 4, "parameters with three tensors of state each"
