"""A number knows whether it was computed with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from elastic_runtime.transformers.steps.counted_labels import CountedLabels

if TYPE_CHECKING:
    from collections.abc import Callable

LOSS = torch.tensor(14.0)


@pytest.mark.parametrize(
    "use",
    [
        lambda n: LOSS / n,
        lambda n: LOSS.div(n),
        lambda n: LOSS * (1 / n),
        lambda n: LOSS / n.to("cpu").detach(),
        lambda n: LOSS / torch.as_tensor(n).clamp(min=1),
        lambda n: LOSS / n.item(),
        lambda n: LOSS / float(n),
        lambda n: torch.true_divide(input=LOSS, other=n),
    ],
)
def test_it_was(use: Callable[[Any], Any]) -> None:
    number = CountedLabels.of(7)
    result = use(number)
    assert number.uses
    assert float(result) == 2
    assert type(result) is not CountedLabels


def test_it_was_not() -> None:
    number = CountedLabels.of(torch.tensor(7))
    moved = number.to(torch.device("cpu"))
    assert torch.is_tensor(moved)
    assert (moved.device.type, moved.dtype, moved.shape, moved.dim()) == ("cpu", torch.int64, (), 0)
    assert not number.uses
    assert CountedLabels.of(number) is number


def test_a_loss_of_transformers_uses_it() -> None:
    number = CountedLabels.of(torch.tensor(5))
    logits = torch.randn(1, 6, 8, requires_grad=True)
    labels = torch.arange(6)[None]
    loss = ForCausalLMLoss(logits, labels, 8, num_items_in_batch=number)
    loss.backward()
    assert number.uses
    plain = ForCausalLMLoss(logits, labels, 8, num_items_in_batch=torch.tensor(5))
    assert loss.item() == plain.item()
