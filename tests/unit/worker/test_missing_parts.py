"""What is left out of a State shows in the first two steps, and nothing else is spoken of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.events.state_events import StateLacks
from elastic_runtime.training.state import State
from elastic_runtime.worker.missing_parts import Finding, MissingParts, reaches, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.events import Event


def stream() -> elastic.ShardedStream:
    """Sixteen samples."""
    return elastic.ShardedStream([0], read=lambda _: torch.zeros(16, 2), global_batch_size=2)


class Script:
    """All that a script may train with."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        self.optim: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters())
        self.stream = stream()

    def steps(self, state: State, step: Callable[[], None] | None = None) -> list[Finding]:
        """What is found in two steps that are ``step``; None: those of the optimizer."""
        watch, found = MissingParts(state), None
        try:
            for _ in range(2):
                assert found is None
                (step or self.step)()
                found = watch.committed()
        finally:
            watch.close()
        assert found is not None
        return found

    def step(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.optim.step()


@pytest.fixture
def script() -> Script:
    return Script()


def test_an_optimizer_of_the_models_is_missed(script: Script) -> None:
    state = State(model=script.model, stream=script.stream)
    (found,) = script.steps(state)
    assert "AdamW changes parameters of the State's 'model' and is not in" in found.text
    assert not found.certain


@pytest.mark.parametrize("counts", [False, True])
def test_a_state_without_the_model_is_missed(script: Script, counts: bool) -> None:
    state = State(stream=script.stream)
    if counts:
        state.weights = [0.0]  # whoever keeps values here may keep those
    (found,) = script.steps(state)
    assert "AdamW changes parameters that are not in the State" in found.text
    assert found.certain is not counts


class Holder:
    """A class of the user's, with the optimizer inside."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Wrapper(torch.optim.Optimizer):  # type: ignore[misc]
    """One that has another one make its steps."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base.param_groups, {})
        self.base = base

    def step(self, closure: Any = None) -> None:
        self.base.step()
        self.state[self.param_groups[0]["params"][0]]["steps"] = torch.ones(1)


def test_what_is_in_the_state_in_some_way_is_not_spoken_of(script: Script) -> None:
    model, optim = script.model, script.optim
    assert script.steps(State(model=model, optim=optim)) == []
    assert script.steps(State(model=model, mine=Holder({"all": [optim]}))) == []
    assert script.steps(State(model=model, mine=Holder(optim.state_dict))) == []
    assert script.steps(State(model=model, mine=Holder(lambda: optim))) == []
    script.optim = Wrapper(optim)
    assert script.steps(State(model=model, outer=script.optim)) == []
    assert script.steps(State(model=model, inner=optim)) == []


def test_a_schedule_knows_its_optimizer_and_does_not_keep_it(script: Script) -> None:
    schedule = torch.optim.lr_scheduler.StepLR(script.optim, 1)
    (found,) = script.steps(State(model=script.model, schedule=schedule))
    assert "AdamW changes parameters of the State's 'model'" in found.text


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaler_that_is_left_out_is_an_error(script: Script, enabled: bool) -> None:
    optim, scaler = script.optim, torch.amp.GradScaler("cpu", enabled=enabled)

    class Scaled(torch.optim.Optimizer):  # type: ignore[misc]
        """Steps as a script does with a scaler."""

        def __init__(self) -> None:
            pass

        def zero_grad(self, set_to_none: bool = True) -> None:
            optim.zero_grad()

        def step(self, closure: Any = None) -> None:
            scaler.scale(torch.ones(()))
            scaler.step(optim)
            scaler.update()

    plain = torch.amp.GradScaler.step
    script.optim = Scaled()
    found = script.steps(State(model=script.model, optim=optim))
    assert [one.certain for one in found] == [True] * enabled
    assert script.steps(State(model=script.model, optim=optim, scaler=scaler)) == []
    assert script.steps(State(model=script.model, optim=optim, mine=Holder(scaler))) == []
    assert torch.amp.GradScaler.step is plain


def test_an_optimizer_that_has_nothing_to_lose_may_stay_outside(script: Script) -> None:
    script.optim = torch.optim.SGD(script.model.parameters(), lr=0.1)
    assert script.steps(State(model=script.model)) == []
    script.optim = torch.optim.SGD(script.model.parameters(), lr=0.1, momentum=0.9)
    assert len(script.steps(State(model=script.model))) == 1


def test_an_optimizer_of_one_step_is_a_helper(script: Script) -> None:
    def step() -> None:
        noise = torch.zeros(1, 2, requires_grad=True)
        helper = torch.optim.Adam([noise])
        script.model(noise).sum().backward()
        helper.step()

    assert script.steps(State(model=script.model, optim=script.optim), step) == []


def test_it_looks_on_no_more_after_two_steps(script: Script) -> None:
    from torch.optim import optimizer

    before = dict(optimizer._global_optimizer_post_hooks)
    script.steps(State(model=script.model, optim=script.optim))
    assert optimizer._global_optimizer_post_hooks == before


def test_the_hooks_of_a_state_are_no_way_to_the_whole_script(script: Script) -> None:
    state = State(model=script.model, optim=script.optim)
    other = torch.optim.Adam([nn.Parameter(torch.ones(1))])
    state._on_commit = lambda: other.step()
    assert not reaches([script.optim], other)


def test_what_is_certain_is_an_error_and_the_rest_a_hint() -> None:
    said: list[str] = []

    def note(event: Event) -> None:
        assert isinstance(event, StateLacks)
        said.append(event.problem)

    report([Finding("perhaps", certain=False)], note)
    assert said == ["perhaps"]
    with pytest.raises(UsageError, match="surely"):
        report([Finding("surely", certain=True)], note)


def test_elastic_run_says_so_at_the_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from elastic_runtime.training import run_loop

    monkeypatch.setattr(run_loop, "_ran", False)
    script = Script()
    state = State(stream=script.stream)

    def train(world: elastic.World) -> None:
        for _ in script.stream.steps(epochs=1):
            script.step()
            state.commit()

    with pytest.raises(UsageError, match="AdamW changes parameters that are not in the State"):
        elastic.run(train, state)
    assert state.step == 2
