"""What a script changes outside of an optimizer's step: each row of the table in docs/in-place.md.

A fault is what ``elastic.run`` does with the State then: ``leave``, and later ``roll_back``, if the
status says that it can.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from elastic_runtime.training.state import State
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from tests.unit.parts.small_job import as_text, begun

STEPS = 6


class Script:
    """A model, its average, its schedule and a counter, in a step that ``order`` describes."""

    def __init__(self, order: str, *, shadow: bool = False, optimized: bool = True) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(2, 2)
        self.optim = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optim, step_size=1, gamma=0.9)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        parts = {"optim": self.optim, "schedule": self.schedule} if optimized else {}
        self.state = State(shadow=shadow, model=self.model, ema=self.ema, **parts)
        self.state.loss = 0.0
        begun(self.state)
        self.order = order.split()
        self.breaks = -1  # at which collective of a step the fault finds this rank
        self.collectives = 0

    def step(self, breaks: int = -1) -> str:
        """One step; with ``breaks`` it ends in that collective. Returns what ``leave`` says."""
        self.breaks, self.collectives = breaks, 0
        try:
            for name in self.order:
                getattr(self, name)()
        except ConnectionResetError:
            return self.state._leave()
        assert breaks < 0
        return ""

    def steps(self, count: int) -> Script:
        for _ in range(count):
            self.step()
        return self

    def content(self) -> str:
        return as_text(self.state)

    @property
    def condition(self) -> MemoryCondition:
        return self.state.rank_status().condition

    # What an order may name

    def backward(self) -> None:
        self.optim.zero_grad()
        self.model(torch.ones(1, 2) * (1 + self.state.step)).square().sum().backward()
        self.collective()

    def collective(self) -> None:
        """Stands for one: a fault shows here."""
        if self.collectives == self.breaks:
            raise ConnectionResetError
        self.collectives += 1

    def optimize(self) -> None:
        self.optim.step()

    def optimize_by_hand(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad

    def average(self) -> None:
        self.ema.update_parameters(self.model)

    def anneal(self) -> None:
        self.schedule.step()

    def anneal_by_hand(self) -> None:
        self.optim.param_groups[0]["lr"] *= 0.9

    def count(self) -> None:
        self.state.loss = 1.0 + self.state.step

    def clip(self) -> None:
        with torch.no_grad():
            self.model.weight.clamp_(-0.5, 0.5)

    def commit(self) -> None:
        self.state.commit()


IN_ORDER = "backward optimize average anneal count commit"
AVERAGE_AFTER_COMMIT = "backward optimize commit average"
BY_HAND = "backward optimize_by_hand collective commit"
CLIPPED_BEFORE = "clip backward optimize commit"
METRIC_LAST = "backward optimize collective commit"
METRIC_AND_THEN_ALL_ELSE = "backward optimize collective average anneal count commit"
CLIPPED_AFTER_METRIC = "backward optimize collective clip commit"


@pytest.mark.parametrize(
    ("order", "first"), [(IN_ORDER, 0), (AVERAGE_AFTER_COMMIT, 0), (CLIPPED_BEFORE, 2)]
)
@pytest.mark.parametrize("after", range(STEPS))
def test_a_fault_before_the_optimizer_is_undone_exactly(order: str, first: int, after: int) -> None:
    script = Script(order)
    contents = [script.content()]
    script.state._on_commit = lambda: contents.append(script.content())
    script.steps(after)
    why = script.step(breaks=0)
    if after < first:
        assert script.condition is MemoryCondition.DIRTY
        assert "model.weight changed after the commit, outside of an optimizer" in why
        return
    assert (why, script.condition) == ("", MemoryCondition.CLEAN)
    script.state.roll_back()
    assert script.content() == contents[-1]


@pytest.mark.parametrize("after", range(STEPS))
def test_a_manual_step_is_not_applied_twice(after: int) -> None:
    script, whole = Script(BY_HAND, optimized=False), Script(BY_HAND, optimized=False)
    script.steps(after)
    assert script.step(breaks=1) == ""  # the weights have changed, the commit has not come
    script.state.roll_back()
    script.step()
    whole.steps(after + 1)
    assert script.content() == whole.content()


def test_an_average_that_needs_no_gradients_is_named_until_it_is_copied() -> None:
    fits = []
    for after in range(STEPS):
        script = Script(AVERAGE_AFTER_COMMIT)
        script.ema.requires_grad_(False)
        script.state.remember_commit(0)
        script.steps(after)
        why = script.step(breaks=0)
        fits.append(why == "")
        assert not why or "ema.module.bias, ema.module.weight changed after the commit" in why
    assert fits == [True, False, False, True, True, True]


def test_the_usual_order_costs_no_copies() -> None:
    script = Script(IN_ORDER).steps(STEPS)
    watched = [part for part in script.state._parts if part.name in ("model", "ema")]
    assert len(watched) == 2
    assert not any(part.restless | part.on_trial for part in watched)  # type: ignore[attr-defined]


def test_weights_that_are_loaded_once_are_not_copied_ever_after() -> None:
    script = Script(IN_ORDER).steps(1)
    script.model.load_state_dict(script.model.state_dict())
    assert "model.bias, model.weight changed" in script.step(breaks=0)
    script = Script(IN_ORDER)
    for loads in (False, True, False, False):
        if loads:
            script.model.load_state_dict(script.model.state_dict())
        script.step()
    assert script.step(breaks=0) == ""
    assert not script.state._parts[0].restless  # type: ignore[attr-defined]


def test_a_parameter_in_the_place_of_another_is_named() -> None:
    script = Script(IN_ORDER).steps(1)
    script.model.weight = nn.Parameter(torch.zeros(2, 2))
    assert "model.weight changed" in script.step(breaks=0)


def test_what_is_written_by_way_of_data_is_not_seen() -> None:
    """The limit of it, which the page names."""
    script = Script(IN_ORDER).steps(1)
    script.model.weight.data.zero_()
    assert script.step(breaks=0) == ""
    script.state.roll_back()
    assert script.model.weight.count_nonzero() == 0


@pytest.mark.parametrize("order", [METRIC_LAST, METRIC_AND_THEN_ALL_ELSE, CLIPPED_AFTER_METRIC])
def test_between_an_optimizer_and_its_commit_a_step_is_half_done(order: str) -> None:
    script = Script(order).steps(2)
    assert script.step(breaks=1) == ""
    assert script.condition is MemoryCondition.DIRTY


@pytest.mark.parametrize(
    "order",
    [AVERAGE_AFTER_COMMIT, CLIPPED_BEFORE, BY_HAND, METRIC_AND_THEN_ALL_ELSE, CLIPPED_AFTER_METRIC],
)
def test_a_shadow_undoes_all_of_it(order: str) -> None:
    for breaks in (0, 1):
        script = Script(order, shadow=True)
        contents = []
        script.state._on_commit = lambda kept=contents, s=script: kept.append(s.content())
        script.steps(2)
        if breaks and order in (AVERAGE_AFTER_COMMIT, CLIPPED_BEFORE):
            continue
        assert script.step(breaks=breaks) == ""
        script.state.roll_back()
        assert script.content() == contents[-1]
