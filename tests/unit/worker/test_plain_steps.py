"""A worker looks once at what makes its steps, and tells its agent of a trainer without adapter."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from elastic_runtime.events.state_events import TrainerUnadapted
from elastic_runtime.protocol.messages import ENV_CHANNEL
from elastic_runtime.worker import plain_steps
from elastic_runtime.worker.context import WorkerContext

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TrainerUnadapted]]:
    """What the agent of rank 0 of two is told."""
    found: list[TrainerUnadapted] = []
    here = WorkerContext({ENV_CHANNEL: "/nowhere", "RANK": "0"})
    monkeypatch.setattr(plain_steps, "context", lambda: here)
    monkeypatch.setattr(here, "note_once", found.append)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(plain_steps, "_CLASSES", (("Lightning", "a_trainer", "Trainer"),))
    watch = plain_steps._Watch()
    yield found
    watch._hook.remove()


def train(steps: int, optimizers: int = 1) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    made = [torch.optim.SGD([weight], lr=0.1) for _ in range(optimizers)]
    for _ in range(steps):
        weight.sum().backward()
        for optimizer in made:
            optimizer.step()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer's class, of a package that is loaded."""
    module = ModuleType("a_trainer")
    module.Trainer = type("Trainer", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_trainer", module)
    return type("OwnTrainer", (module.Trainer,), {})  # type: ignore[attr-defined]


@pytest.fixture
def at_work(loaded: Any) -> Iterator[Any]:
    """Such a trainer."""
    made = loaded()
    yield made
    del made


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)


@pytest.mark.usefixtures("connected", "at_work")
def test_a_trainer_is_told_of_in_time(told: list[TrainerUnadapted]) -> None:
    train(2, optimizers=3)
    assert not told
    train(9)
    assert told == [TrainerUnadapted("Lightning", alone=False)]


def test_it_looks_once_and_leaves_other_hooks_alone(told: list[TrainerUnadapted]) -> None:
    seen: list[int] = []
    other = register_optimizer_step_post_hook(lambda *_: seen.append(1))
    train(6)
    other.remove()
    train(6)
    assert len(seen) == 6
    assert len(told) == 1


@pytest.mark.usefixtures("connected", "loaded")
def test_a_package_that_is_loaded_and_not_used_is_not_told_of(told: list[TrainerUnadapted]) -> None:
    train(5)
    assert not told


def test_a_rank_that_trains_alone_is_told_of(told: list[TrainerUnadapted]) -> None:
    train(5)
    assert told == [TrainerUnadapted("", alone=True)]


@pytest.mark.usefixtures("connected", "at_work")
@pytest.mark.parametrize(("ranks", "alone"), [(1, True), (2, False)])
def test_accelerate_may_do_without_the_ranks_that_it_has_connected(
    told: list[TrainerUnadapted], monkeypatch: pytest.MonkeyPatch, ranks: int, alone: bool
) -> None:
    monkeypatch.setattr(plain_steps, "_CLASSES", (("Accelerate", "a_trainer", "Trainer"),))
    state = ModuleType("accelerate.state")
    state.PartialState = type("PartialState", (), {"_shared_state": {"num_processes": ranks}})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    train(5)
    assert told == [TrainerUnadapted("Accelerate", alone=alone)]


@pytest.mark.usefixtures("at_work")
def test_a_program_that_reports_its_steps_is_left_in_peace(told: list[TrainerUnadapted]) -> None:
    plain_steps.context().report_step(1)
    train(5)
    assert not told


@pytest.mark.parametrize(("rank", "world"), [(0, "1"), (1, "2")])
def test_one_worker_may_train_alone_and_other_ranks_do_not_look(
    told: list[TrainerUnadapted], monkeypatch: pytest.MonkeyPatch, rank: int, world: str
) -> None:
    monkeypatch.setattr(plain_steps.context(), "rank", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    train(5)
    assert not told


def test_real_trainers_are_where_they_are_looked_for() -> None:
    from accelerate import Accelerator
    from lightning.pytorch import Trainer as OfLightning
    from transformers import Trainer as OfTransformers

    for found in (Accelerator, OfLightning, OfTransformers):
        assert (found.__module__, found.__name__) in {(m, n) for _, m, n in plain_steps._CLASSES}
