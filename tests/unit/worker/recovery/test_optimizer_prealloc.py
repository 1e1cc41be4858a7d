"""Memory for optimizer state that is touched before it is received."""

from __future__ import annotations

import torch
from torch import nn

from elastic_runtime.worker.recovery.optimizer_prealloc import PreallocatedTensors
from elastic_runtime.worker.state.state_parts import TensorForm
from elastic_runtime.worker.state.training_state import State

# Larger than what the allocator ever keeps when it is freed: fresh memory is untouched.
_LARGE = 9 << 20


def _in_memory(tensor: torch.Tensor) -> bool:
    """Whether the pages of a tensor are there already: untouched ones are not."""
    first, last = tensor.data_ptr() >> 12, (tensor.data_ptr() + tensor.nbytes - 1) >> 12
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(first * 8)
        entries = memoryview(file.read((last - first + 1) * 8)).cast("Q")
    return all(entry >> 63 for entry in entries)


def test_the_memory_is_there_and_is_given_away_once() -> None:
    parameter = torch.empty(_LARGE)
    room = PreallocatedTensors([parameter])
    form = TensorForm.of(parameter)
    given = [room.take(form), room.take(form)]
    assert all(map(_in_memory, given))
    assert not _in_memory(room.take(form)), "there were two only"
    assert given[0].data_ptr() != given[1].data_ptr()
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in given)


def test_another_form_gets_memory_of_its_own() -> None:
    taken = PreallocatedTensors([torch.empty(8)]).take(TensorForm("int64", (3,), "cpu"))
    assert (taken.dtype, taken.shape) == (torch.int64, (3,))


def test_a_state_makes_room_for_optimizers_that_have_made_no_step() -> None:
    model = nn.Linear(_LARGE >> 10, 1 << 10, bias=False)
    optim = torch.optim.Adam(model.parameters())
    state = State(model=model, optim=optim)
    form = TensorForm.of(model.weight)
    state.preallocate()
    assert _in_memory(state.tensor_for(form))
    state.drop_preallocated()
    assert not _in_memory(state.tensor_for(form))
    model(torch.ones(1, _LARGE >> 10)).sum().backward()
    optim.step()
    state.preallocate()
    assert not _in_memory(state.tensor_for(form)), "it has its state already"
