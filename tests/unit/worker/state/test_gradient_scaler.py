"""A gradient scaler in a step that is broken off: the step that is made again is made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from elastic_runtime.worker.recovery.error_classification import WorldChanged
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from elastic_runtime.worker.state.optimizer_gate import OptimizerGate
from elastic_runtime.worker.state.training_state import State
from tests.queued_device import QueuedDevice
from tests.unit.worker.state.small_job import begun, copy_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Own:
    """A script's own object around a scaler."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler
        self.state_dict = scaler.state_dict
        self.load_state_dict = scaler.load_state_dict


class Rank:
    """Each step adds one to the weight; a fault may come between any two of its lines."""

    def __init__(
        self, *, shadow: bool = False, fused: bool = False, enabled: bool = True, own: bool = False
    ) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        self.model.weight.data.zero_()
        self.optim = torch.optim.SGD(self.model.parameters(), lr=1.0, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        scaler = Own(self.scaler) if own else self.scaler
        self.state = State(shadow=shadow, model=self.model, optim=self.optim, scaler=scaler)
        begun(self.state)
        self.explicit = False
        self.step()
        self.step()

    def step(self, *, breaks: str = "") -> None:
        def reach(place: str) -> None:
            if place == breaks:
                raise WorldChanged

        self.optim.zero_grad()
        self.scaler.scale(-self.model(torch.ones(1, 1)).sum()).backward()
        if self.explicit:
            self.scaler.unscale_(self.optim)
            reach("unscaled")
        self.state._gate = OptimizerGate(lambda: reach("gate"), QueuedDevice())
        self.scaler.step(self.optim)
        reach("stepped")
        self.scaler.update()
        self.state.commit()

    def break_off(self, where: str) -> MemoryCondition:
        self.explicit = where == "unscaled"
        with pytest.raises(WorldChanged):
            self.step(breaks=where)
        self.state.leave()
        return self.state.rank_status().condition

    def check(self, steps: int) -> None:
        """That it makes one step more, and that all of them were applied once."""
        self.step()
        assert self.state.step == steps
        assert self.model.weight.item() == steps
        assert self.scaler.get_scale() == (65536.0 if self.scaler.is_enabled() else 1.0)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("where", ["gate", "unscaled"])
def test_a_scaler_is_rolled_back_as_well(where: str, fused: bool, own: bool) -> None:
    rank = Rank(fused=fused, own=own)
    for _ in range(2):
        assert rank.break_off(where) is MemoryCondition.CLEAN
        rank.state.roll_back()
    rank.check(3)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("where", ["gate", "unscaled", "stepped"])
def test_a_shadow_rolls_a_scaler_back_from_anywhere(where: str, fused: bool) -> None:
    rank = Rank(shadow=True, fused=fused)
    if where == "gate":  # with a shadow nothing is held back
        rank.optim.register_step_pre_hook(_raise_once())
    assert rank.break_off(where) is MemoryCondition.CLEAN
    rank.state.roll_back()
    rank.check(3)


def _raise_once() -> Callable[..., None]:
    left = [WorldChanged()]

    def hook(*_: object) -> None:
        if left:
            raise left.pop()

    return hook


@pytest.mark.parametrize("where", ["gate", "unscaled", "stepped"])
def test_the_state_of_another_rank_finds_a_scaler_ready(where: str) -> None:
    other = Rank()
    other.step()
    rank = Rank()
    rank.break_off(where)
    rank.state.load(*copy_of(other.state.commit_image()))
    rank.check(4)


def test_a_step_that_is_adopted_leaves_a_scaler_ready() -> None:
    rank = Rank()
    rank.state._changes.tail.clear()  # type: ignore[union-attr]  # its update is not waited for
    assert rank.break_off("stepped") is MemoryCondition.FINISHED
    rank.state.adopt()
    rank.check(4)


def test_a_scaler_that_is_disabled_has_nothing_to_forget() -> None:
    rank = Rank(enabled=False)
    assert rank.break_off("gate") is MemoryCondition.CLEAN
    rank.state.roll_back()
    rank.check(3)
