"""Raw bytes with a head and a tail are what ``torch.save`` would have written."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
import torch

from elastic_runtime.checkpoint.format.tensor_archive import ALIGNMENT, wrapping
from elastic_runtime.checkpoint.save.staging import of_tensor

if TYPE_CHECKING:
    from pathlib import Path

TENSORS = [
    torch.arange(6).view(2, 3),
    torch.full((4,), 0.5, dtype=torch.bfloat16),
    torch.full((4,), 2.0, dtype=torch.float8_e4m3fn),
    torch.full((3,), 7, dtype=torch.uint16),
    torch.tensor([True, False]),
    torch.tensor(3.5, dtype=torch.float64),
    torch.zeros(0, 3),
    torch.zeros(3, 0, 2),
    torch.randn(2, 3, dtype=torch.complex64).conj(),
    torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last),
    torch.randn(3, 4).t(),
    torch.randn(9)[::2],
]


@pytest.mark.parametrize("tensor", TENSORS)
def test_torch_loads_it(tensor: torch.Tensor) -> None:
    source = of_tensor(tensor)
    data = b"".join(source.views)
    assert source.data % ALIGNMENT == 0
    assert len(data) % ALIGNMENT == 0
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    assert (loaded.dtype, loaded.shape) == (tensor.dtype, tensor.shape)
    assert loaded.is_contiguous()
    assert not loaded.requires_grad
    assert torch.equal(loaded.to(torch.complex128), tensor.to(torch.complex128))


@pytest.mark.parametrize("size", [(1 << 32) - 1, (1 << 32) + 5])
def test_torch_loads_more_than_4_gib(tmp_path: Path, size: int) -> None:
    around = wrapping(torch.uint8, (size,), size)
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(around.head)
        file.seek(size - 1, io.SEEK_CUR)  # a hole: nothing is really written
        file.write(b"\x07" + around.tail)
    loaded = torch.load(path, weights_only=True, mmap=True)
    assert loaded.shape == (size,)
    assert loaded[-1] == 7
