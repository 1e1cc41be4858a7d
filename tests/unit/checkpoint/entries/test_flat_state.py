"""From entries to a flat state and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.entries.flat_state import Entries
from elastic_runtime.checkpoint.entries.per_rank_values import PerRank
from elastic_runtime.errors import CheckpointError
from elastic_runtime.worker.state.training_state import State

if TYPE_CHECKING:
    from pathlib import Path


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=generator)).square().sum().backward()
        optimizer.step()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_plain_values_and_other_owners_of_state(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    entries = {"optim": optimizer, "schedule": schedule, "best": 0.5, "log": [{"a": (1, None)}]}
    Checkpointer(tmp_path, entries).save(sync=True)

    optimizer2 = torch.optim.SGD(net().parameters(), lr=1.0)
    schedule2 = torch.optim.lr_scheduler.StepLR(optimizer2, step_size=2)
    entries2 = {"optim": optimizer2, "schedule": schedule2, "best": 0.0, "log": []}
    Checkpointer(tmp_path, entries2).resume()
    assert entries2["best"] == 0.5
    assert entries2["log"] == [{"a": (1, None)}]
    assert schedule2.last_epoch == 3
    assert optimizer2.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (np.float64(1.0), "best is a numpy.float64"),
        ([1, {"a": np.int64(3)}], r"best\[1\]\['a'\] is a numpy.int64"),
        ({"f": len}, r"best\['f'\] is a builtins.builtin_function_or_method"),
        (PerRank(np.float64(1.0)), "best is a numpy.float64"),
    ],
)
def test_what_could_not_be_loaded_safely_is_refused_before_it_is_saved(
    value: Any, where: str
) -> None:
    with pytest.raises(CheckpointError, match=where):
        Entries({"best": value})


def test_a_value_that_turns_unsafe_later_fails_the_save_alone(tmp_path: Path) -> None:
    entries: dict[str, Any] = {"best": 1.0}
    ckpt = Checkpointer(tmp_path, entries)
    ckpt.save(sync=True)
    ckpt.steps, entries["best"] = 1, np.float64(2.0)
    with pytest.raises(CheckpointError, match=r"numpy\.float64"):
        ckpt.save(sync=True)
    again: dict[str, Any] = {"best": 0.0}
    assert Checkpointer(tmp_path, again).resume() == 0
    assert again["best"] == 1.0


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": nn.Linear(3, 4), "best": 1}).save(sync=True)
    wider = {"model": nn.Linear(3, 5), "best": 1}
    with pytest.raises(CheckpointError, match=r"model\.weight with shape \(4, 3\).*\(5, 3\)"):
        Checkpointer(tmp_path, wider).resume()
    other = {"model": nn.Linear(3, 4, bias=False), "step": 1}
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(tmp_path, other).resume()
    assert "it lacks step; it also has best, model.bias;" in str(caught.value)
    tensor_now = {"model": nn.Linear(3, 4), "best": nn.Linear(1, 1)}
    with pytest.raises(CheckpointError, match="lacks best"):
        Checkpointer(tmp_path, tensor_now).resume()


def test_weights_may_become_finer_or_coarser_but_not_another_kind(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}).save(sync=True)
    coarse = nn.Linear(2, 2, dtype=torch.bfloat16)
    Checkpointer(tmp_path, {"model": coarse}).resume()
    counted = nn.Module()
    counted.register_buffer("weight", torch.zeros(2, 2, dtype=torch.int64))
    counted.register_buffer("bias", torch.zeros(2))
    with pytest.raises(CheckpointError, match=r"model\.weight as torch\.float32, which torch\.int"):
        Checkpointer(tmp_path, {"model": counted}).resume()


def test_what_an_owner_refuses_is_an_error_that_names_it(tmp_path: Path) -> None:
    class Picky:
        def state_dict(self) -> dict[str, int]:
            return {"at": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise ValueError("not again")

    Checkpointer(tmp_path, {"picky": Picky()}).save(sync=True)
    with pytest.raises(CheckpointError, match=r"the entry 'picky' refused .*not again"):
        Checkpointer(tmp_path, {"picky": Picky()}).resume()


def test_the_counters_of_a_state_are_saved_if_there_are_any(tmp_path: Path) -> None:
    def saved(**counters: int) -> State:
        state = State(model=nn.Linear(2, 2))
        for name, value in counters.items():
            setattr(state, name, value)
        return state

    def checkpointer(state: State) -> Checkpointer:
        made = Checkpointer(tmp_path, dict(state.parts))
        made._entries.add_counters(state.counters_entry())
        return made

    with_none = checkpointer(saved())
    with_none.steps = 1
    with_none.save(sync=True)
    kept = saved(seen=7)
    checkpointer(kept).resume()
    assert kept.seen == 7, "a checkpoint without counters leaves them alone"
    again = checkpointer(kept)
    again.steps = 2
    again.save(sync=True)
    other = saved(seen=1, gone=2)
    assert checkpointer(other).resume() == 2
    assert other.seen == 7
    assert not hasattr(other, "gone")
    assert Checkpointer(tmp_path, dict(other.parts)).resume() == 2, "nobody needs a State to load"
