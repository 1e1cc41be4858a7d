"""Wrappers of optimizers are seen through, where they have nothing of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from elastic_runtime.worker.state.training_state import State
from elastic_runtime.worker.state.wrappers import bare, unwrapped_optimizer
from tests.unit.worker.state.small_job import has_status


def test_an_optimizer_that_only_passes_steps_on_is_seen_through() -> None:
    class Passing(torch.optim.Optimizer):
        """As accelerate's, which never was an optimizer of its own."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def step(self, closure: Any = None) -> None:
            self.optimizer.step(closure)

    class Averaging(torch.optim.SGD):
        """One with a state of its own, around another one."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            super().__init__(optimizer.param_groups[0]["params"], lr=0.1)
            self.optimizer = optimizer

    model = nn.Linear(2, 2)
    inner = torch.optim.Adam(model.parameters())
    for wrapper, kept in ((Passing(Passing(inner)), inner), (outer := Averaging(inner), outer)):
        assert unwrapped_optimizer(wrapper) is kept
    state = State(model=model, optim=Passing(inner))
    state.remember_commit(1)
    model(torch.ones(1, 2)).sum().backward()
    Passing(inner).step()
    assert has_status(state, 1, MemoryCondition.DIRTY)
    compiled = torch.compile(model, backend="eager")
    assert bare(compiled) is model and bare(Passing(inner)) is inner and bare(3) == 3
