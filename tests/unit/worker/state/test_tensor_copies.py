"""Copies of tensors come back into the tensors that they were taken of, whatever these are."""

from __future__ import annotations

import pytest
import torch

from elastic_runtime.worker.state.tensor_copies import TensorCopies, receives, write


def of_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(3.0)


def tensors() -> list[torch.Tensor]:
    plain = torch.arange(3.0, requires_grad=True)
    return [plain, torch.arange(2.0).reshape(2, 1).expand(2, 3), of_inference(), torch.tensor(4.0)]


def test_all_kinds_of_tensors_get_their_values_back() -> None:
    live, copies = tensors(), TensorCopies()
    copies.take(live)
    for tensor in live:
        write(tensor, torch.full(tensor.shape, -1.0))
    assert all(bool((tensor == -1).all()) for tensor in live)
    copies.give_back()
    for tensor, expected in zip(live, tensors(), strict=True):
        assert torch.equal(tensor, expected)


def test_memory_is_used_again_while_the_tensors_keep_their_form() -> None:
    copies, live = TensorCopies(), torch.ones(3)
    copies.take([live])
    (first,) = copies._kept
    copies.take([torch.zeros(3)])
    assert copies._kept[0] is first
    copies.take([torch.zeros(4)])
    assert copies._kept[0] is not first
    copies.give_back()
    assert torch.equal(live, torch.ones(3)), "the copies of the last time are those that count"


@pytest.mark.parametrize(
    ("tensor", "straight"),
    [
        (torch.ones(2, 3), True),
        (torch.ones(2, 3).t(), False),
        (torch.ones(1).expand(3), False),
        (of_inference(), False),
    ],
)
def test_which_memory_a_message_may_be_put_into(tensor: torch.Tensor, straight: bool) -> None:
    assert receives(tensor) == straight
