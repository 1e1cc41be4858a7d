"""Tensors that torch lets nobody write to are brought back all the same, or refused at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.parts.commit_image import destinations
from elastic_runtime.parts.tensor_memory import TensorCopies, receives
from elastic_runtime.training.state import State
from tests.unit.parts.small_job import begun, copy_of

KINDS = ("expanded", "inference", "conjugate", "negative", "plain")


def made(kind: str, start: float) -> torch.Tensor:
    """A tensor of this kind, with other values for another start."""
    values = torch.arange(4.0) + start
    if kind == "expanded":
        return values.expand(3, -1)
    if kind == "inference":
        with torch.inference_mode():
            return values + 0
    if kind == "plain":
        return values
    conjugate = torch.complex(values, values + 1).conj()
    return conjugate if kind == "conjugate" else conjugate.imag


class Net(nn.Module):
    """Has all kinds of buffers, and a weight that was made for inference."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        for kind in KINDS:
            self.register_buffer(kind, made(kind, start))
        self.register_buffer("late", None, persistent=False)
        self.frozen = nn.Parameter(made("inference", start), requires_grad=False)

    def values(self) -> list[Any]:
        """Of all that is there."""
        own = dict(self.named_buffers())
        return [own[name].resolve_conj().tolist() for name in sorted(own)] + [self.frozen.tolist()]

    def change(self) -> None:
        """What a step may do to them."""
        with torch.inference_mode():
            self.inference.add_(7)
        self.expanded[:1].add_(7)
        self.conjugate.add_(7)
        self.negative.add_(7)


def committed(net: Net, *, shadow: bool = False) -> State:
    state = begun(State(shadow=shadow, net=net))
    with torch.inference_mode():
        net.late = torch.ones(2)  # as a cache that the first evaluation fills
    state.commit()
    return state


@pytest.mark.parametrize("shadow", [False, True])
def test_all_are_rolled_back(shadow: bool) -> None:
    net = Net(1)
    state = committed(net, shadow=shadow)
    before, expanded = net.values(), net.expanded
    for _ in range(2):
        net.change()
        assert net.values() != before
        assert state._leave() == ""
        state.roll_back()
        assert net.values() == before
    assert net.expanded is expanded and expanded.stride() == (0, 1)


def test_all_are_given_to_another_rank() -> None:
    giver, taker = Net(1), Net(5)
    source, target = committed(giver), committed(taker)
    picture = copy_of(source.commit_image())
    room = destinations(target._parts, picture.meta)
    for place, tensor in zip(room, picture.tensors, strict=True):
        if place is not None:
            with torch.no_grad():
                place.copy_(tensor)  # as it is received
    target._load(picture.meta, picture.tensors)
    assert taker.values() == giver.values()
    assert source._digest() == target._digest()
    assert taker.expanded.stride() == (0, 1)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_scripted_module_is_refused_with_its_name() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"^model\.1 is a scripted module.*torch\.compile"):
        State(model=nn.Sequential(nn.ReLU(), scripted)).keep_in_memory()


def test_a_module_without_values_is_refused_until_it_has_some() -> None:
    model = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    with pytest.raises(UsageError, match=r"^model\.0\.weight has no values yet.*LazyLinear"):
        State(model=model).keep_in_memory()
    model[0](torch.ones(2, 3))
    with pytest.raises(UsageError, match=r"^model\.1\..* has no values yet"):
        State(model=model).keep_in_memory()
    model(torch.ones(2, 3))
    State(model=model).keep_in_memory().remember_commit(0)


# Copies of tensors


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
        (made("inference", 0), False),
    ],
)
def test_which_memory_a_message_may_be_put_into(tensor: torch.Tensor, straight: bool) -> None:
    assert receives(tensor) == straight
