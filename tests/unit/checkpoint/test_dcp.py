"""What is stored is plain DCP, and tensors of every kind come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

from elastic_runtime.checkpoint.checkpointer import Checkpointer

if TYPE_CHECKING:
    from pathlib import Path


def saved(tmp_path: Path, entries: dict[str, Any]) -> Path:
    ckpt = Checkpointer(tmp_path / "runs", entries)
    ckpt.save(sync=True)
    return tmp_path / "runs" / "step-0.term-1"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_plain_dcp_reads_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 4)
    path = saved(tmp_path, {"model": model, "best": 5})
    state = {"model.weight": torch.zeros(4, 3), "model.bias": torch.zeros(4)}
    torch_dcp.load(
        state,
        storage_reader=torch_dcp.FileSystemReader(path),
        planner=torch_dcp.DefaultLoadPlanner(flatten_state_dict=False),
    )
    assert torch.equal(state["model.weight"], model.weight)
    assert torch.equal(state["model.bias"], model.bias)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3),
        torch.full((4,), 0.5, dtype=torch.bfloat16),
        torch.full((4,), 2.0, dtype=torch.float8_e4m3fn),
        torch.tensor([True, False]),
        torch.tensor(3.5, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(3, 4).t(),
    ],
)
def test_tensors_of_every_kind_come_back(tmp_path: Path, tensor: torch.Tensor) -> None:
    saved(tmp_path, {"model": _Buffers(tensor)})
    loaded = _Buffers(torch.zeros_like(tensor))
    Checkpointer(tmp_path / "runs", {"model": loaded}).resume()
    assert torch.equal(loaded.tensor.double(), tensor.double())


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    path = saved(tmp_path, {"best": 1, "model": _Buffers(torch.zeros(1_000_000)[:10])})
    assert (path / "rank-0.distcp").stat().st_size < 10_000


class _Buffers(torch.nn.Module):
    tensor: torch.Tensor

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("tensor", tensor)
