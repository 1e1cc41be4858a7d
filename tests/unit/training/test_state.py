"""What a State remembers, when it is clean, and what it gives to another State."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.parts.commit_image import destinations
from elastic_runtime.parts.other_parts import moves
from elastic_runtime.parts.wrappers import bare, unwrapped_optimizer
from elastic_runtime.training.state import State
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition, StateLost
from tests.unit.parts.small_job import Job, begun, copy_of, has_status


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
    state = State(module=module).keep_in_memory()
    state.remember_commit(0)
    module.kept = torch.ones(5)
    module.none = torch.ones(1)
    module.register_buffer("added", torch.ones(1))
    state.roll_back()
    assert module.kept is kept and module.kept.tolist() == [0, 0]
    assert module.none is None
    assert "added" not in module._buffers


def test_marks_a_half_done_step() -> None:
    job = Job().start()
    conditions = []
    job.step()
    job.optim.register_step_pre_hook(
        lambda *_: conditions.append(job.state.rank_status().condition)
    )
    job.forward()
    job.optim.step()
    assert conditions == [MemoryCondition.DIRTY]
    assert has_status(job.state, 1, MemoryCondition.DIRTY)
    with pytest.raises(StateLost, match="step 1"):
        job.state.roll_back()


def gan() -> tuple[State, torch.optim.Optimizer, torch.optim.Optimizer]:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    d = torch.optim.SGD(first.parameters(), lr=0.1)
    g = torch.optim.SGD(second.parameters(), lr=0.1)
    for parameter in (*first.parameters(), *second.parameters()):
        parameter.grad = torch.ones_like(parameter)
    return begun(State(first=first, second=second, d=d, g=g)), d, g


def test_until_its_commit_a_step_is_half_done() -> None:
    state, d, g = gan()
    d.step(), d.step(), g.step()
    assert state.rank_status().condition is MemoryCondition.DIRTY
    state.commit()
    assert has_status(state, 1, MemoryCondition.CLEAN)
    d.step()
    assert state.rank_status().condition is MemoryCondition.DIRTY
    state.commit()
    assert has_status(state, 2, MemoryCondition.CLEAN)


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
    state = State(shadow=True, model=model, optim=optim).keep_in_memory()

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
    state = State(model=model).keep_in_memory()
    with pytest.raises(UsageError, match=r"state\.best\.loss is a builtins\.object"):
        state.best = {"loss": object()}
    itself: list[object] = []
    itself.append(itself)
    with pytest.raises(UsageError, match=r"state\.best holds itself"):
        state.best = itself
    with pytest.raises(CheckpointUsageError, match=r"best is a number of 2326 bits, .* as text"):
        state.best = 10**700
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
    state = State(model=model, optim=torch.optim.SGD(model.parameters(), lr=0.1)).keep_in_memory()
    state.best = 0.5
    state.long = list(range(1000))
    said = repr(state)
    assert said.startswith("State(model: Linear, optim: SGD, best=0.5, long=[0, 1,")
    assert said.endswith("; step 0)")
    assert len(said) < 120


# What a State gives to another one, and what that makes of it


def test_gives_everything_to_a_new_rank() -> None:
    old, new = Job().start(), Job(seed=1, lr=0.5)
    for _ in range(3):
        old.step()
    weight = new.model[0].weight
    assert new.state._digest() != old.state._digest()
    new.state._load(*copy_of(old.state.commit_image()))
    assert has_status(new.state, 3, MemoryCondition.CLEAN)
    assert new.state.commit_image().meta == old.state.commit_image().meta
    for here, there in zip(
        new.state.commit_image().tensors, old.state.commit_image().tensors, strict=True
    ):
        assert torch.equal(here, there) and here.dtype == there.dtype
    assert new.model[0].weight is weight
    assert (new.state.seen, new.state.losses) == (12, old.state.losses)
    assert new.sampler.cursor == 12
    assert new.state._digest() == old.state._digest()
    new.forward()
    new.optim.step()
    assert has_status(new.state, 3, MemoryCondition.DIRTY)


def test_what_was_loaded_trains_on_and_rolls_back() -> None:
    old, new = Job().start(), Job(seed=1).start()
    old.step()
    new.forward()  # its gradients are of a step that never was
    new.state._load(*copy_of(old.state.commit_image()))
    assert all(p.grad is None for p in new.model.parameters())
    for job in (old, new):
        torch.manual_seed(5)
        random.seed(5)
        job.step()
    assert new.content() == old.content()
    before = new.content()
    new.forward()
    new.state.roll_back()
    assert new.content() == before


def test_a_load_that_fails_half_way_leaves_nothing_to_go_on_from() -> None:
    old, new = Job().start(), Job(seed=1)
    old.step()

    def fail(state: object) -> None:
        raise ValueError("not this one")

    new.sampler.load_state_dict = fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="not this one"):
        new.state._load(*copy_of(old.state.commit_image()))
    assert has_status(new.state, 1, MemoryCondition.DIRTY)


def test_receives_into_its_own_memory() -> None:
    old, new = Job().start(), Job(seed=1)
    old.step()
    meta, tensors = copy_of(old.state.commit_image())
    rooms = zip(destinations(new.state._parts, meta), tensors, strict=True)
    received = [tensor if room is None else room.copy_(tensor) for room, tensor in rooms]
    assert any(t.data_ptr() == new.model[0].weight.data_ptr() for t in received)
    new.state._load(meta, received)
    assert new.state._digest() == old.state._digest()


def test_what_ranks_share_is_parameters_and_optimizer_state() -> None:
    job = Job().start()
    job.step()
    meta, tensors = job.state.commit_image()
    shared = {tensors[number].data_ptr() for number in meta["alike"]}
    buffers = {b.data_ptr() for b in job.model.buffers()}
    assert shared | buffers == {t.data_ptr() for t in tensors}
    assert not shared & buffers


# The parts of a State: what each keeps, gives to another rank, and refuses


def test_optimizer_state_keeps_its_type() -> None:
    def build() -> tuple[torch.optim.Optimizer, State]:
        model = nn.Linear(2, 2).bfloat16()
        optim = torch.optim.Adam(model.parameters())
        return optim, State(model=model, optim=optim).keep_in_memory()

    (optim, state), (other_optim, other) = build(), build()
    parameter = optim.param_groups[0]["params"][0]
    optim.state[parameter] = {"master": torch.ones(2, 2, dtype=torch.float64), "count": 3}
    state.remember_commit(1)
    other._load(*copy_of(state.commit_image()))
    loaded = other_optim.state[other_optim.param_groups[0]["params"][0]]
    assert loaded["master"].dtype is torch.float64 and loaded["count"] == 3


def test_extra_states_of_modules_are_covered() -> None:
    class Counting(nn.Module):
        calls = 0

        def get_extra_state(self) -> Any:
            return {"calls": self.calls}

        def set_extra_state(self, state: Any) -> None:
            self.calls = state["calls"]

    here, there = nn.Sequential(Counting()), nn.Sequential(Counting())
    here[0].calls = 3
    state, other = State(model=here).keep_in_memory(), State(model=there).keep_in_memory()
    state.remember_commit(0)
    here[0].calls = 4
    state.roll_back()
    assert here[0].calls == 3
    other._load(*copy_of(state.commit_image()))
    assert there[0].calls == 3


def test_wrappers_do_not_show() -> None:
    model = nn.Linear(2, 2)
    plain, wrapped = (
        State(model=model).keep_in_memory(),
        State(model=nn.DataParallel(nn.Linear(2, 2)).cpu()).keep_in_memory(),
    )
    plain.remember_commit(2)
    wrapped._load(*copy_of(plain.commit_image()))
    assert wrapped._digest() == plain._digest()


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (nn.Linear(3, 2), r"model\.weight: float32\[2, 3\] on cpu here, float32\[2, 2\] on cpu"),
        (nn.Linear(2, 2).double(), r"model\.weight: float64"),
        (nn.Linear(2, 2, bias=False), r"tensors of 'model': also nothing here, also model.bias on"),
        (nn.BatchNorm1d(2), r"tensors of 'model': also model\.num_batches_tracked"),
    ],
)
def test_models_that_differ_are_named(model: nn.Module, what: str) -> None:
    state = State(model=nn.Linear(2, 2)).keep_in_memory()
    state.remember_commit(0)
    other = State(model=model).keep_in_memory()
    other.remember_commit(7)
    with pytest.raises(UsageError, match=f"models differ between ranks.*({what})"):
        other._load(*copy_of(state.commit_image()))
    assert has_status(other, 7, MemoryCondition.CLEAN)  # and still has what it had


def test_objects_and_parameter_groups_that_differ_are_named() -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    two = [{"params": [model.weight]}, {"params": [model.bias]}]
    state = State(model=model, optim=optim).keep_in_memory()
    with pytest.raises(UsageError, match="objects of the State: also nothing here, also optim"):
        State(model=model).keep_in_memory()._load(*copy_of(state.commit_image()))
    other = State(model=model, optim=torch.optim.SGD(two, lr=0.1)).keep_in_memory()
    with pytest.raises(UsageError, match=r"parameters of 'optim': 1\+1 in 2 groups"):
        other._load(*copy_of(state.commit_image()))


def test_the_digest_sees_each_kind_of_difference() -> None:
    def digest(change: Any) -> int:
        job = Job().start()
        torch.manual_seed(3)
        random.seed(3)
        job.step()
        change(job)
        return job.state._digest()

    def nudge(tensor: torch.Tensor) -> None:
        with torch.no_grad():
            tensor.add_(1e-3)

    changes = [
        lambda job: None,
        lambda job: nudge(job.model[0].weight),
        lambda job: nudge(job.model[1].running_mean),
        lambda job: nudge(job.optim.state[job.model[0].weight]["exp_avg"]),
        lambda job: job.optim.param_groups[0].update(lr=1.0),
        lambda job: setattr(job.state, "seen", 5),
        lambda job: job.sampler.commit(),
    ]
    assert len({digest(change) for change in changes}) == len(changes)
    assert digest(lambda job: torch.rand(1)) == digest(lambda job: random.random())


def test_refuses_what_it_cannot_keep() -> None:
    with pytest.raises(UsageError, match=r"State\(thing=\.\.\.\) is a object without state_dict"):
        State(thing=object())
    with pytest.raises(UsageError, match="'commit' is a name of State's own"):
        State(commit=nn.Linear(1, 1))
    with pytest.raises(UsageError, match="shadow and generators are switches"):
        State(shadow=nn.Linear(1, 1))  # type: ignore[arg-type]
    loose = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    with pytest.raises(UsageError, match=r"'optim' \(shape \(3,\)\) belongs to no module"):
        State(optim=loose).keep_in_memory()


class _Counting:
    """Its ``commit`` is a method, or else what somebody has put there."""

    def __init__(self, commit: Any = None) -> None:
        self.commits = 0
        self.commit = commit or self._count

    def _count(self) -> None:
        self.commits += 1


def test_a_commit_that_is_no_method_is_left_alone() -> None:
    """Such as the revision of somebody's code."""
    assert moves(_Counting()) and not moves(_Counting("1f0e2a"))


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
    state = State(model=model, optim=Passing(inner)).keep_in_memory()
    state.remember_commit(1)
    model(torch.ones(1, 2)).sum().backward()
    Passing(inner).step()
    assert has_status(state, 1, MemoryCondition.DIRTY)
    compiled = torch.compile(model, backend="eager")
    assert bare(compiled) is model and bare(Passing(inner)) is inner and bare(3) == 3


def test_loaders_know_the_scalers_that_are_in_use() -> None:
    class Scaling:
        def __init__(self) -> None:
            self.scaler = torch.amp.GradScaler("cpu")

        def state_dict(self) -> dict[str, Any]:
            return self.scaler.state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.scaler.load_state_dict(state)

    own, off, held = (
        torch.amp.GradScaler("cpu"),
        torch.amp.GradScaler("cpu", enabled=False),
        Scaling(),
    )
    loader = DataLoader(torch.arange(4), 2)
    State(own=own, off=off, held=held, loader=loader)
    assert loader.scalers() == [own, held.scaler]
