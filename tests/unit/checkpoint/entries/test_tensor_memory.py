"""The bytes of tensors, in place."""

from __future__ import annotations

import gc

import pytest
import torch

from elastic_runtime.checkpoint.entries.tensor_memory import (
    bytes_of,
    local_chunk,
    local_tensor,
    without_collection,
)


def test_the_bytes_are_those_of_the_tensor_and_keep_it_alive() -> None:
    tensor = torch.arange(4, dtype=torch.uint8)
    memory = bytes_of(tensor)
    memory[0] = 9
    assert tensor.tolist() == [9, 1, 2, 3]
    del tensor
    gc.collect()
    assert bytes(memory) == bytes([9, 1, 2, 3])
    assert bytes_of(torch.ones(3, dtype=torch.bfloat16)).nbytes == 6
    assert bytes(bytes_of(torch.ones(0))) == b""


def test_a_plain_tensor_is_here_as_a_whole() -> None:
    tensor = torch.ones(2, 3)
    assert local_tensor(tensor) is tensor
    chunk = local_chunk(tensor)
    assert (chunk.offsets, chunk.sizes) == ((0, 0), (2, 3))


def test_garbage_is_collected_again_afterwards_if_it_was_before() -> None:
    with pytest.raises(KeyError), without_collection():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    with without_collection():
        with without_collection():
            pass
        assert not gc.isenabled()
