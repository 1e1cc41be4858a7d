"""What a State remembers, when it is clean, and what it gives to another State."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition, StateLost
from elastic_runtime.worker.state.training_state import State
from tests.unit.worker.state.small_job import Job, has_status


def test_counts_its_commits_and_tells_the_loop_last() -> None:
    job = Job().start()
    told = []
    job.state._on_commit = lambda: told.append((job.state.step, job.state.rank_status().condition))
    job.step()
    job.step()
    assert told == [(1, MemoryCondition.CLEAN), (2, MemoryCondition.CLEAN)]
    assert job.sampler.cursor == 8


def test_an_interrupt_out_of_the_commit_leaves_it_done() -> None:
    job = Job().start()

    def interrupt() -> None:
        raise KeyboardInterrupt

    job.state._on_commit = interrupt
    with pytest.raises(KeyboardInterrupt):
        job.step()
    assert has_status(job.state, 1, MemoryCondition.CLEAN)


def test_commit_outside_of_a_run_is_refused() -> None:
    job = Job()
    with pytest.raises(UsageError, match=r"outside of elastic\.run"):
        job.state.commit()
    assert job.state.step == 0


def test_is_new_until_it_holds_something() -> None:
    job = Job()
    job.forward()
    job.optim.step()
    assert job.state.rank_status().condition is MemoryCondition.NEW
    with pytest.raises(StateLost):
        job.state.roll_back()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_rolls_back_all_that_a_forward_pass_changes(steps: int) -> None:
    job = Job().start()
    for _ in range(steps):
        job.step()
    before = job.content()
    for _ in range(2):  # a commit may be gone back to more than once
        job.forward()
        assert job.content() != before
        assert has_status(job.state, steps, MemoryCondition.CLEAN)
        job.state.roll_back()
        assert job.content() == before
        assert all(p.grad is None for p in job.model.parameters())


def test_a_step_repeated_after_a_roll_back_ends_alike() -> None:
    contents = []
    for broken in (True, False):
        random.seed(7)
        job = Job().start()
        job.step()
        if broken:
            job.forward()
            job.state.roll_back()
        job.step()
        contents.append(job.content())
    assert contents[0] == contents[1]


def test_rolls_back_the_learning_rate_and_the_scheduler() -> None:
    job = Job().start()
    job.step()
    for _ in range(3):
        job.scheduler.step()
    assert job.optim.param_groups[0]["lr"] < 0.01
    job.state.roll_back()
    assert job.optim.param_groups[0]["lr"] == 0.01
    assert job.scheduler.last_epoch == 1


def test_rolls_back_buffers_that_were_replaced_or_added() -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.zeros(2))
    module.register_buffer("none", None)
    kept = module.kept
    state = State(module=module)
    state.remember_commit(0)
    module.kept = torch.ones(5)
    module.none = torch.ones(1)
    module.register_buffer("added", torch.ones(1))
    state.roll_back()
    assert module.kept is kept and module.kept.tolist() == [0, 0]
    assert module.none is None
    assert "added" not in module._buffers


def test_a_counter_that_is_a_container_is_rolled_back_each_time() -> None:
    state = State()
    state.history = [1]
    state.remember_commit(0)
    for _ in range(2):
        state.history.append(2)
        state.roll_back()
        assert state.history == [1]


def test_marks_a_half_done_and_a_finished_step() -> None:
    job = Job().start()
    conditions = []
    job.step()
    job.optim.register_step_pre_hook(
        lambda *_: conditions.append(job.state.rank_status().condition)
    )
    job.forward()
    job.optim.step()
    assert conditions == [MemoryCondition.DIRTY]
    assert has_status(job.state, 1, MemoryCondition.FINISHED)
    with pytest.raises(StateLost, match="step 1"):
        job.state.roll_back()


def test_adopts_a_finished_step() -> None:
    job = Job().start()
    job.step()
    with pytest.raises(StateLost, match="step 2"):
        job.state.adopt()
    job.forward()
    job.optim.step()
    job.state.adopt()
    assert has_status(job.state, 2, MemoryCondition.CLEAN)
    assert all(p.grad is None for p in job.model.parameters())
    assert job.sampler.cursor == 8
    before = job.content()
    job.forward()
    job.state.roll_back()
    assert job.content() == before


def gan() -> tuple[State, torch.optim.Optimizer, torch.optim.Optimizer]:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    d = torch.optim.SGD(first.parameters(), lr=0.1)
    g = torch.optim.SGD(second.parameters(), lr=0.1)
    for parameter in (*first.parameters(), *second.parameters()):
        parameter.grad = torch.ones_like(parameter)
    state = State(first=first, second=second, d=d, g=g)
    state._on_commit = lambda: None
    state.remember_commit(0)
    return state, d, g


def test_between_two_optimizers_a_step_is_half_done() -> None:
    state, d, g = gan()
    d.step(), g.step()
    state.commit()
    d.step()
    assert state.rank_status().condition is MemoryCondition.DIRTY
    g.step()
    assert state.rank_status().condition is MemoryCondition.FINISHED


def test_optimizers_with_a_ratio_commit_but_are_never_adopted_half_done() -> None:
    state, d, g = gan()
    d.step(), d.step(), g.step()
    assert state.rank_status().condition is MemoryCondition.DIRTY  # nobody knows yet what a step is
    state.commit()
    d.step()
    state.commit()
    d.step(), g.step()
    assert state.rank_status().condition is MemoryCondition.DIRTY
    state.commit()
    assert has_status(state, 3, MemoryCondition.CLEAN)


def test_a_step_whose_optimizer_raises_is_half_done() -> None:
    job = Job().start()
    job.step()

    def fail(*_: object) -> None:
        raise RuntimeError

    job.forward()
    handle = job.optim.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError):
        job.optim.step()
    handle.remove()
    assert job.state.rank_status().condition is MemoryCondition.DIRTY
    job.optim.step()  # on top of what the first one has left
    assert job.state.rank_status().condition is MemoryCondition.DIRTY


def test_a_shadow_rolls_back_from_anywhere() -> None:
    job = Job(shadow=True).start()
    for _ in range(2):  # from a state without and with the optimizer's moments
        before = job.content()
        job.forward()
        job.optim.step()
        assert job.state.rank_status().condition is MemoryCondition.CLEAN
        job.state.roll_back()
        assert job.content() == before
        job.step()
    assert job.state.step == 2


def test_a_shadow_keeps_optimizer_state_that_is_no_tensor() -> None:
    model = nn.Linear(2, 1)
    optim = torch.optim.LBFGS(model.parameters())
    state = State(shadow=True, model=model, optim=optim)

    def closure() -> torch.Tensor:
        optim.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum() + model.weight.square().sum()
        loss.backward()
        return loss

    optim.step(closure)
    state.remember_commit(1)
    before = [str(values) for values in optim.state.values()]
    for _ in range(2):
        optim.step(closure)
        assert [str(values) for values in optim.state.values()] != before
        state.roll_back()
        assert [str(values) for values in optim.state.values()] == before


def test_refuses_bad_counters_when_they_are_set() -> None:
    model = nn.Linear(1, 1)
    state = State(model=model)
    with pytest.raises(UsageError, match=r"state\.best\.loss is a builtins\.object"):
        state.best = {"loss": object()}
    with pytest.raises(UsageError, match="'step' is a name of State's own"):
        state.step = 3  # type: ignore[misc]
    with pytest.raises(UsageError, match=r"state\.model was given"):
        state.model = 3
    with pytest.raises(AttributeError, match=r"state\.epoch = 0"):
        _ = state.epoch
    assert state.model is model
    state.epoch = 1
    del state.epoch
    assert not hasattr(state, "epoch")


def test_a_state_says_what_it_holds() -> None:
    model = nn.Linear(1, 1)
    state = State(model=model, optim=torch.optim.SGD(model.parameters(), lr=0.1))
    state.best = 0.5
    state.long = list(range(1000))
    said = repr(state)
    assert said.startswith("State(model: Linear, optim: SGD, best=0.5, long=[0, 1,")
    assert said.endswith("; step 0)")
    assert len(said) < 120
