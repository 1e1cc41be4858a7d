"""The parts of a State: what each keeps, gives to another rank, and refuses."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from elastic_runtime.worker.state.state_parts import StatefulPart
from elastic_runtime.worker.state.training_state import State
from tests.unit.worker.state.small_job import Job, copy_of, has_status


def test_optimizer_state_keeps_its_type() -> None:
    def build() -> tuple[torch.optim.Optimizer, State]:
        model = nn.Linear(2, 2).bfloat16()
        optim = torch.optim.Adam(model.parameters())
        return optim, State(model=model, optim=optim)

    (optim, state), (other_optim, other) = build(), build()
    parameter = optim.param_groups[0]["params"][0]
    optim.state[parameter] = {"master": torch.ones(2, 2, dtype=torch.float64), "count": 3}
    state.remember_commit(1)
    other.load(*copy_of(state.commit_image()))
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
    state, other = State(model=here), State(model=there)
    state.remember_commit(0)
    here[0].calls = 4
    state.roll_back()
    assert here[0].calls == 3
    other.load(*copy_of(state.commit_image()))
    assert there[0].calls == 3


def test_wrappers_do_not_show() -> None:
    model = nn.Linear(2, 2)
    plain, wrapped = State(model=model), State(model=nn.DataParallel(nn.Linear(2, 2)).cpu())
    plain.remember_commit(2)
    wrapped.load(*copy_of(plain.commit_image()))
    assert wrapped.digest() == plain.digest()


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (nn.Linear(3, 2), r"model\.weight: float32\[2, 3\] on cpu here, float32\[2, 2\] on cpu"),
        (nn.Linear(2, 2).double(), r"model\.weight: float64"),
        (nn.Linear(2, 2, bias=False), r"parameters of 'model': also nothing here, also bias on"),
        (nn.BatchNorm1d(2), "buffers of 'model'|float32"),
    ],
)
def test_models_that_differ_are_named(model: nn.Module, what: str) -> None:
    state = State(model=nn.Linear(2, 2))
    state.remember_commit(0)
    other = State(model=model)
    other.remember_commit(7)
    with pytest.raises(UsageError, match=f"models differ between ranks.*({what})"):
        other.load(*copy_of(state.commit_image()))
    assert has_status(other, 7, MemoryCondition.CLEAN)  # and still has what it had


def test_objects_and_parameter_groups_that_differ_are_named() -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    two = [{"params": [model.weight]}, {"params": [model.bias]}]
    state = State(model=model, optim=optim)
    with pytest.raises(UsageError, match="objects of the State: also nothing here, also optim"):
        State(model=model).load(*copy_of(state.commit_image()))
    other = State(model=model, optim=torch.optim.SGD(two, lr=0.1))
    with pytest.raises(UsageError, match=r"parameters of 'optim': 1\+1 in 2 groups"):
        other.load(*copy_of(state.commit_image()))


def test_the_digest_sees_each_kind_of_difference() -> None:
    def digest(change: Any) -> int:
        job = Job().start()
        torch.manual_seed(3)
        random.seed(3)
        job.step()
        change(job)
        return job.state.digest()

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
        State(optim=loose)


class _Counting:
    """Its ``commit`` is a method, or else what somebody has put there."""

    def __init__(self, commit: Any = None) -> None:
        self.commits = 0
        self.commit = commit or self._count

    def _count(self) -> None:
        self.commits += 1


def test_a_commit_that_is_no_method_is_left_alone() -> None:
    """Such as the revision of somebody's code."""
    for owner, commits in ((_Counting(), 1), (_Counting("1f0e2a"), 0)):
        StatefulPart("config", owner).commit()
        assert owner.commits == commits
