"""Modules, optimizers and other owners of state, and plain values: saved and given back."""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, namedtuple
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from elastic_runtime.checkpoint.entries.committed_entries import CommittedEntries
from elastic_runtime.checkpoint.entries.flat_state import Entries
from elastic_runtime.checkpoint.entries.parameter_names import ParameterNames
from elastic_runtime.checkpoint.entries.tensor_memory import (
    bytes_of,
    local_chunk,
    local_tensor,
    without_collection,
)
from torch import nn

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.errors import CheckpointError, CheckpointUsageError, UsageError
from elastic_runtime.parts.per_rank import PerRank
from elastic_runtime.parts.plain_values import check_plain
from elastic_runtime.parts.wrappers import unwrapped
from elastic_runtime.training.state import State

if TYPE_CHECKING:
    from collections.abc import Callable
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


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.Adam(p, lr=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.SGD(p, lr=0.01),
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    lambda p: torch.optim.Adafactor(p, lr=0.01),
]


def resumed(path: Path, saved: dict[str, Any], loaded: dict[str, Any], **options: Any) -> int:
    """Saves some entries, and gives others what was saved; returns the step."""
    Checkpointer(path, saved).save(sync=True)
    return Checkpointer(path, loaded).resume(**options)


@pytest.mark.parametrize("build", OPTIMIZERS)
def test_a_fresh_optimizer_goes_on_as_the_saved_one(
    tmp_path: Path, build: Callable[[Any], torch.optim.Optimizer]
) -> None:
    model, model2 = net(), net(seed=1)
    optimizer, optimizer2 = build(model.parameters()), build(model2.parameters())
    train(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.125
    resumed(tmp_path, {"model": model, "optim": optimizer}, {"model": model2, "optim": optimizer2})
    assert same(model.state_dict(), model2.state_dict())
    assert same(optimizer.state_dict(), optimizer2.state_dict())
    train(model, optimizer)
    train(model2, optimizer2)
    assert same(model.state_dict(), model2.state_dict())


def test_the_state_goes_by_the_names_of_the_parameters(tmp_path: Path) -> None:
    model, model2 = net(), net()
    optimizer = torch.optim.Adam(model.parameters())
    reversed_order = torch.optim.Adam(reversed(list(model2.parameters())))
    train(model, optimizer)
    resumed(
        tmp_path, {"model": model, "optim": optimizer}, {"model": model2, "optim": reversed_order}
    )
    saved = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    loaded = [reversed_order.state[p]["exp_avg"] for p in model2.parameters()]
    assert same(saved, loaded)


def test_a_parameter_that_was_never_used_has_no_state(tmp_path: Path) -> None:
    def job() -> dict[str, Any]:
        model = nn.ModuleDict({"used": nn.Linear(2, 2), "spare": nn.Linear(2, 2)})
        return {"model": model, "optim": torch.optim.Adam(model.parameters())}

    saved, fresh = job(), job()
    saved["model"]["used"](torch.ones(1, 2)).sum().backward()
    saved["optim"].step()
    resumed(tmp_path, saved, fresh)
    assert same(saved["optim"].state_dict(), fresh["optim"].state_dict())


def test_a_compiled_module_has_the_names_of_the_original() -> None:
    model = net()
    compiled = torch.compile(model, backend="eager")
    assert unwrapped(compiled) is model
    assert Entries({"m": compiled}).state(0).keys() == {f"m.{key}" for key in model.state_dict()}


@pytest.mark.parametrize("name", ["", "a.b"])
def test_a_name_without_a_dot_is_needed(name: str) -> None:
    with pytest.raises(CheckpointError, match="without a dot"):
        Entries({name: 1})


class Extra(nn.Module):
    """Has a state that is no tensor."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.words = words

    def get_extra_state(self) -> dict[str, str]:
        return {"words": self.words}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self.words = state["words"]


def test_a_module_has_its_extra_state_back(tmp_path: Path) -> None:
    model = Extra("fresh")
    resumed(tmp_path, {"model": Extra("saved")}, {"model": model})
    assert model.words == "saved"


class Halved(nn.Module):
    """Is saved as something else than it has in memory."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), value))
        self.register_state_dict_post_hook(partial(_scale, 0.5))
        self.register_load_state_dict_pre_hook(partial(_scale, 2.0))


def _scale(by: float, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    state[f"{prefix}weight"] = state[f"{prefix}weight"] * by


def test_the_hooks_of_a_module_are_heard(tmp_path: Path) -> None:
    model = Halved(1.0)
    resumed(tmp_path, {"model": Halved(6.0)}, {"model": model})
    assert model.weight.tolist() == [6.0] * 3


def test_a_module_that_only_makes_a_tensor_to_save_it_has_it_back(tmp_path: Path) -> None:
    class Made(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.kept = nn.Parameter(torch.full((2,), value))

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}kept"] = self.kept.detach().clone()

    model = Made(0.0)
    resumed(tmp_path, {"model": Made(4.0)}, {"model": model})
    assert model.kept.tolist() == [4.0, 4.0]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    def tied(value: float) -> nn.Sequential:
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        nn.init.constant_(first.weight, value)
        second.weight = first.weight
        return nn.Sequential(first, second)

    model = tied(0.0)
    resumed(tmp_path, {"model": tied(5.0)}, {"model": model})
    assert model[0].weight is model[1].weight
    assert model[1].weight.eq(5.0).all()


def test_an_optimizer_in_use_keeps_its_memory(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    ckpt = Checkpointer(tmp_path, {"model": model, "optim": optimizer})
    ckpt.save(sync=True)
    averages = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    before = [(average.clone(), average.data_ptr()) for average in averages]
    train(model, optimizer)
    ckpt.resume()
    averages = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    assert same([(average, average.data_ptr()) for average in averages], before)


def test_an_optimizer_that_was_not_saved_keeps_its_state(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    before = optimizer.state_dict()["state"]
    resumed(tmp_path, {"model": model}, {"model": model, "optim": optimizer}, strict=False)
    assert same(optimizer.state_dict()["state"], before)


def test_parameters_that_come_later_have_their_names_too(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    ckpt = Checkpointer(tmp_path, {"model": model, "optim": optimizer})
    ckpt.save(sync=True)
    model.append(nn.Linear(2, 2))
    optimizer.add_param_group({"params": list(model[-1].parameters())})
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    ckpt.steps = 1
    ckpt.save(sync=True)
    grown = net().append(nn.Linear(2, 2))
    fresh = torch.optim.Adam(grown[:-1].parameters())
    fresh.add_param_group({"params": list(grown[-1].parameters())})
    assert Checkpointer(tmp_path, {"model": grown, "optim": fresh}).resume() == 1
    assert same(fresh.state_dict(), optimizer.state_dict())


def test_a_scheduler_with_milestones_goes_on(tmp_path: Path) -> None:
    def scheduler() -> torch.optim.lr_scheduler.LRScheduler:
        optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 3])

    saved, loaded = scheduler(), scheduler()
    loaded.milestones.clear()
    resumed(tmp_path, {"scheduler": saved}, {"scheduler": loaded})
    assert loaded.state_dict() == saved.state_dict()
    assert type(loaded.milestones) is type(saved.milestones)


def test_an_optimizer_may_have_dots_in_its_keys(tmp_path: Path) -> None:
    saved, loaded = (torch.optim.SGD(net().parameters()) for _ in range(2))
    for parameter in saved.param_groups[0]["params"]:
        saved.state[parameter] = {"buffer.fast": torch.randn_like(parameter), "n.a": 3}
    resumed(tmp_path, {"optim": saved}, {"optim": loaded})
    assert same(loaded.state_dict(), saved.state_dict())


# From entries to a flat state and back


def test_plain_values_and_other_owners_of_state(tmp_path: Path) -> None:
    def job(best: float, log: list[Any]) -> dict[str, Any]:
        optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
        return {"optim": optimizer, "schedule": schedule, "best": best, "log": log}

    saved, loaded = job(0.5, [{"a": (1, None)}]), job(0.0, [])
    for _ in range(3):
        saved["optim"].step()
        saved["schedule"].step()
    resumed(tmp_path, saved, loaded)
    assert (loaded["best"], loaded["log"]) == (0.5, [{"a": (1, None)}])
    assert loaded["schedule"].last_epoch == 3
    assert loaded["optim"].param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("value", [np.float64(1.0), PerRank(np.float64(1.0))])
def test_what_could_not_be_loaded_safely_is_refused_before_it_is_saved(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"best is a numpy\.float64"):
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


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ({"model": nn.Linear(3, 5), "best": 1}, r"model\.weight with shape \(4, 3\).*\(5, 3\)"),
        (
            {"model": nn.Linear(3, 4, bias=False), "step": 1},
            r"it lacks step; it also has best, model\.bias;",
        ),
        ({"model": nn.Linear(3, 4), "best": nn.Linear(1, 1)}, "lacks best"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, program: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        resumed(tmp_path, {"model": nn.Linear(3, 4), "best": 1}, program)


def test_weights_may_become_finer_or_coarser_but_not_another_kind(tmp_path: Path) -> None:
    saved = {"model": nn.Linear(2, 2)}
    resumed(tmp_path, saved, {"model": nn.Linear(2, 2, dtype=torch.bfloat16)})
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

    with pytest.raises(CheckpointError, match=r"the entry 'picky' refused .*not again"):
        resumed(tmp_path, {"picky": Picky()}, {"picky": Picky()})


def test_the_values_of_a_state_are_saved_and_must_be_there(tmp_path: Path) -> None:
    def checkpointer(state: State, *, with_values: bool = True) -> Checkpointer:
        made = Checkpointer(tmp_path, state.saved_objects())
        if with_values:
            made._entries.add_values(state.saved_values())
        return made

    def saved(state: State, step: int, *, with_values: bool = True) -> None:
        made = checkpointer(state, with_values=with_values)
        made.steps = step
        made.save(sync=True)

    def state(**values: int) -> State:
        return State(model=nn.Linear(2, 2), **values)

    saved(state(seen=1), 1, with_values=False)
    kept = state(seen=7)
    checkpointer(kept).resume()
    assert kept.seen == 7, "a checkpoint without a State leaves them alone"
    kept.later = torch.ones(2)  # set while it trains
    saved(kept, 2)
    other = state(seen=1)
    assert checkpointer(other).resume() == 2
    assert (other.seen, other.later.tolist()) == (7, [1, 1])
    with pytest.raises(CheckpointUsageError, match=r"it lacks elastic_runtime\.values\.best;"):
        checkpointer(state(seen=1, best=3)).resume()
    renamed = state(seen=1, best=3)
    assert checkpointer(renamed).resume(strict=False) == 2
    assert (renamed.seen, renamed.best) == (7, 3)
    assert checkpointer(other, with_values=False).resume() == 2, "nobody needs a State to load"


# Parameters are called what their modules call them


def test_the_name_of_a_parameter_has_that_of_its_entry_in_front() -> None:
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    names = ParameterNames({"a": one, "b": two, "count": 3})
    stranger = nn.Parameter(torch.ones(1))
    assert names.of([two.weight, one.bias, stranger]) == ["b.weight", "a.bias", ""]


# Plain values, the memory of tensors, and entries that move on with each step


Pair = namedtuple("Pair", "a b")


PLAIN: list[Any] = [None, 1.5, "text", b"bytes", 3 + 4j, [1, (2, {"a": {3}})], torch.ones(2)]
PLAIN += [torch.Size([2]), torch.float16, torch.device("cpu"), OrderedDict(a=1), Counter("aab")]


@pytest.mark.parametrize("value", PLAIN)
def test_what_loads_plainly_is_what_is_allowed(value: Any, tmp_path: Path) -> None:
    check_plain("best", value)
    torch.save(value, tmp_path / "it")
    loaded = torch.load(tmp_path / "it", weights_only=True)
    assert type(loaded) is type(value)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Pair(1, 2), "best is a .*Pair"),
        ({"f": [0, len]}, r"best\['f'\]\[1\] is a builtins\.builtin_function_or_method"),
        ({object(): 1}, r"best is a builtins\.object"),
        (True.__class__, r"best is a builtins\.type"),
    ],
)
def test_what_needs_code_is_named_by_its_place(value: Any, what: str) -> None:
    with pytest.raises(CheckpointUsageError, match=f"{what}.*plain values"):
        check_plain("best", value)


# The bytes of tensors, in place


def test_the_bytes_are_those_of_the_tensor_and_keep_it_alive() -> None:
    tensor = torch.arange(4, dtype=torch.uint8)
    memory = bytes_of(tensor)
    memory[0] = 9
    assert tensor.tolist() == [9, 1, 2, 3]
    del tensor
    gc.collect()
    assert bytes(memory) == bytes([9, 1, 2, 3])
    assert bytes_of(torch.ones(3, dtype=torch.bfloat16)).nbytes == 6
    assert bytes(bytes_of(torch.ones(0))) == b""


def test_a_plain_tensor_is_here_as_a_whole() -> None:
    tensor = torch.ones(2, 3)
    assert local_tensor(tensor) is tensor
    chunk = local_chunk(tensor)
    assert (chunk.offsets, chunk.sizes) == ((0, 0), (2, 3))


def test_garbage_is_collected_again_afterwards_if_it_was_before() -> None:
    with pytest.raises(KeyError), without_collection():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    with without_collection():
        with without_collection():
            pass
        assert not gc.isenabled()


# Entries that move on with each step are moved on once, by one checkpointer only


class Cursor:
    """Moves on with each step, as a sampler does."""

    def __init__(self) -> None:
        self.at = 0

    def commit(self) -> None:
        self.at += 1


def test_what_has_that_name_and_is_no_method_is_left_alone() -> None:
    """A layer, and the revision of somebody's code."""
    layered, named = torch.nn.Module(), SimpleNamespace(commit="1f0e2a")
    layered.commit, first, second = torch.nn.Linear(1, 1), Cursor(), Cursor()
    entries = {"model": layered, "config": named, "first": first, "best": 0.5, "second": second}
    CommittedEntries(entries).commit()
    assert (first.at, second.at) == (1, 1)


def test_two_checkpointers_that_both_move_an_entry_on_are_refused() -> None:
    shared = Cursor()
    one, other = CommittedEntries({"sampler": shared}), CommittedEntries({"data": shared})
    one.commit()
    other.commit()
    with pytest.raises(UsageError, match=r"the entry 'sampler' belongs to two checkpointers.*one"):
        one.commit()
    assert shared.at == 2, "the step that was refused moves nothing"


def test_an_entry_may_go_from_one_checkpointer_to_the_next() -> None:
    shared = Cursor()
    CommittedEntries({"sampler": shared}).commit()
    later = CommittedEntries({"sampler": shared})
    later.commit()
    later.commit()
    assert shared.at == 3
