"""What a script changes outside of an optimizer's step: each row of the table in docs/in-place.md.

A fault is what ``elastic.run`` does with the State then: ``leave``, and later ``roll_back`` or
``adopt``, as the status says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from elastic_runtime.worker.state.training_state import State

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 6


class Script:
    """A model, its average, its schedule and a counter; ``body`` makes one step of them."""

    def __init__(
        self,
        body: Callable[[Script], None],
        *,
        shadow: bool = False,
        optimized: bool = True,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(2, 2)
        self.optim = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optim, step_size=1, gamma=0.9)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        parts = {"optim": self.optim, "schedule": self.schedule} if optimized else {}
        self.state = State(shadow=shadow, model=self.model, ema=self.ema, **parts)
        self.state.loss = 0.0
        self.state._on_commit = lambda: None
        self.state.remember_commit(0)
        self.body = body
        self.breaks = -1  # at which collective of a step the fault finds this rank
        self.collectives = 0

    def backward(self) -> None:
        self.optim.zero_grad()
        self.model(torch.ones(1, 2) * (1 + self.state.step)).square().sum().backward()
        self.collective()

    def collective(self) -> None:
        """Stands for one: a fault shows here."""
        if self.collectives == self.breaks:
            raise ConnectionResetError
        self.collectives += 1

    def step(self, breaks: int = -1) -> str:
        """One step; with ``breaks`` it ends in that collective. Returns what ``leave`` says."""
        self.breaks, self.collectives = breaks, 0
        try:
            self.body(self)
        except ConnectionResetError:
            return self.state.leave()
        assert breaks < 0
        return ""

    def content(self) -> str:
        meta, tensors = self.state.commit_image()
        return json.dumps([meta, [tensor.tolist() for tensor in tensors]])

    @property
    def condition(self) -> MemoryCondition:
        return self.state.rank_status().condition


def in_order(script: Script) -> None:
    script.backward()
    script.optim.step()
    script.ema.update_parameters(script.model)
    script.schedule.step()
    script.state.loss = 1.0 + script.state.step
    script.state.commit()


def average_after_commit(script: Script) -> None:
    script.backward()
    script.optim.step()
    script.state.commit()
    script.ema.update_parameters(script.model)


def by_hand(script: Script) -> None:
    script.backward()
    with torch.no_grad():
        for parameter in script.model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad
    script.collective()
    script.state.commit()


def clipped_before(script: Script) -> None:
    with torch.no_grad():
        script.model.weight.clamp_(-0.5, 0.5)
    script.backward()
    script.optim.step()
    script.state.commit()


def metric_last(script: Script) -> None:
    script.backward()
    script.optim.step()
    script.collective()
    script.state.commit()


def metric_and_then_all_else(script: Script) -> None:
    script.backward()
    script.optim.step()
    script.collective()
    script.ema.update_parameters(script.model)
    script.schedule.step()
    script.state.loss = 1.0 + script.state.step
    script.state.commit()


def all_else_and_then_metric(script: Script) -> None:
    script.backward()
    script.optim.step()
    script.ema.update_parameters(script.model)
    script.schedule.step()
    script.state.loss = 1.0 + script.state.step
    script.collective()
    script.state.commit()


def rate_by_hand_after_metric(script: Script) -> None:
    script.backward()
    script.optim.step()
    script.collective()
    script.optim.param_groups[0]["lr"] *= 0.9
    script.state.commit()


def clipped_after_metric(script: Script) -> None:
    script.backward()
    script.optim.step()
    script.collective()
    with torch.no_grad():
        script.model.weight.clamp_(-0.5, 0.5)
    script.state.commit()


@pytest.mark.parametrize(
    ("body", "first"),
    [(in_order, 0), (average_after_commit, 0), (clipped_before, 2)],
)
@pytest.mark.parametrize("after", range(STEPS))
def test_a_fault_before_the_optimizer_is_undone_exactly(
    body: Callable[[Script], None], first: int, after: int
) -> None:
    script = Script(body)
    contents = [script.content()]
    script.state._on_commit = lambda: contents.append(script.content())
    for _ in range(after):
        script.step()
    why = script.step(breaks=0)
    if after < first:
        assert script.condition is MemoryCondition.DIRTY
        assert "model.weight changed after the commit and outside of an optimizer" in why
        return
    assert (why, script.condition) == ("", MemoryCondition.CLEAN)
    script.state.roll_back()
    assert script.content() == contents[-1]


@pytest.mark.parametrize("after", range(STEPS))
def test_a_manual_step_is_not_applied_twice(after: int) -> None:
    script, whole = Script(by_hand, optimized=False), Script(by_hand, optimized=False)
    for _ in range(after):
        script.step()
    assert script.step(breaks=1) == ""  # the weights have changed, the commit has not come
    script.state.roll_back()
    script.step()
    for _ in range(after + 1):
        whole.step()
    assert script.content() == whole.content()


def test_an_average_that_needs_no_gradients_is_named_until_it_is_copied() -> None:
    def body(script: Script) -> None:
        script.ema.requires_grad_(False)
        average_after_commit(script)

    fits = []
    for after in range(STEPS):
        script = Script(body)
        script.ema.requires_grad_(False)
        script.state.remember_commit(0)
        for _ in range(after):
            script.step()
        why = script.step(breaks=0)
        fits.append(why == "")
        assert not why or "ema.module.bias, ema.module.weight changed after the commit" in why
    assert fits == [True, False, False, True, True, True]


def test_the_usual_order_costs_no_copies() -> None:
    script = Script(in_order)
    for _ in range(STEPS):
        script.step()
    assert not script.state._parts[0].restless | script.state._parts[0].on_trial  # type: ignore[attr-defined]
    ema = next(part for part in script.state._parts if part.name == "ema")
    assert not ema.restless | ema.on_trial  # type: ignore[attr-defined]


def test_weights_that_are_loaded_once_are_not_copied_ever_after() -> None:
    script = Script(in_order)
    script.step()
    script.model.load_state_dict(script.model.state_dict())
    assert "model.bias, model.weight changed" in script.step(breaks=0)
    script = Script(in_order)
    for loads in (False, True, False, False):
        if loads:
            script.model.load_state_dict(script.model.state_dict())
        script.step()
    assert script.step(breaks=0) == ""
    assert not script.state._parts[0].restless  # type: ignore[attr-defined]


def test_a_parameter_in_the_place_of_another_is_named() -> None:
    script = Script(in_order)
    script.step()
    script.model.weight = nn.Parameter(torch.zeros(2, 2))
    assert "model.weight changed" in script.step(breaks=0)


def test_what_is_written_by_way_of_data_is_not_seen() -> None:
    """The limit of it, which the page names."""
    script = Script(in_order)
    script.step()
    script.model.weight.data.zero_()
    assert script.step(breaks=0) == ""
    script.state.roll_back()
    assert script.model.weight.count_nonzero() == 0


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (metric_last, ""),
        (all_else_and_then_metric, ""),
        (metric_and_then_all_else, "ema, optim, schedule and 1 more had yet to follow"),
        (rate_by_hand_after_metric, "optim had yet to follow"),
        (clipped_after_metric, "model had yet to follow"),
    ],
)
@pytest.mark.parametrize("after", [1, 2, STEPS])
def test_a_step_counts_before_its_commit_only_if_nothing_is_left_to_do(
    body: Callable[[Script], None], missing: str, after: int
) -> None:
    script, whole = Script(body), Script(body)
    for _ in range(after):
        script.step()
    why = script.step(breaks=1)
    assert missing in why and bool(missing) == bool(why)
    if missing:
        assert script.condition is MemoryCondition.DIRTY
        return
    assert script.condition is MemoryCondition.FINISHED
    script.state.adopt()
    for _ in range(after + 1):
        whole.step()
    assert script.content() == whole.content()


def test_another_rank_is_told_what_follows_an_optimizer() -> None:
    old, new = Script(metric_and_then_all_else), Script(metric_and_then_all_else)
    old.step()
    meta, tensors = old.state.commit_image()
    new.state.load(json.loads(json.dumps(meta)), [tensor.clone() for tensor in tensors])
    assert "had yet to follow" in new.step(breaks=1)
    assert new.condition is MemoryCondition.DIRTY


def test_what_a_rank_has_learned_of_its_script_is_no_part_of_the_digest() -> None:
    one, other = Script(metric_last), Script(metric_last)
    one.state._changes.tail.add("ema")  # type: ignore[union-attr]
    assert one.state.digest() == other.state.digest()


@pytest.mark.parametrize(
    "body",
    [average_after_commit, clipped_before, by_hand, metric_and_then_all_else, clipped_after_metric],
)
def test_a_shadow_undoes_all_of_it(body: Callable[[Script], None]) -> None:
    for breaks in (0, 1):
        script = Script(body, shadow=True)
        contents = []
        script.state._on_commit = lambda kept=contents, s=script: kept.append(s.content())
        script.step()
        script.step()
        if breaks and body in (average_after_commit, clipped_before):
            continue
        assert script.step(breaks=breaks) == ""
        script.state.roll_back()
        assert script.content() == contents[-1]
