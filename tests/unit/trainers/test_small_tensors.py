"""Small tensors as JSON, and back."""

from __future__ import annotations

import json

import pytest
import torch

from elastic_runtime.trainers.small_tensors import pack_tensor, unpack_tensor


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor(float("inf")),
        torch.tensor([True, False]),
        torch.tensor([], dtype=torch.float64),
        torch.randn(3, 4).t(),
        torch.tensor(2.5, dtype=torch.bfloat16),
    ],
)
def test_a_tensor_comes_back_as_it_was(tensor: torch.Tensor) -> None:
    back = unpack_tensor(json.loads(json.dumps(pack_tensor(tensor))))
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)
