"""Modules, optimizers and other owners of state, and plain values: saved and given back."""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, namedtuple
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic
from elastic_runtime import PerRank, State
from elastic_runtime.checkpoint.format.tensor_memory import local_chunk, without_collection
from elastic_runtime.errors import CheckpointError, CheckpointUsageError, UsageError
from elastic_runtime.parts.tensor_memory import bytes_of, local_tensor
from tests.trained import cut_off, trained
from tests.unit.checkpoint.states import save, state_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def net(seed: int = 0) -> nn.Sequential:
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


def moved(path: Path, saved: dict[str, Any], loaded: dict[str, Any], **options: Any) -> State:
    """Saves some parts of a State, and gives others what was saved; gives the State of these."""
    save(path, saved)
    state = State(**loaded)
    elastic.load(path, state, **options)
    return state


@pytest.mark.parametrize("build", OPTIMIZERS)
def test_a_fresh_optimizer_goes_on_as_the_saved_one(
    tmp_path: Path, build: Callable[[Any], torch.optim.Optimizer]
) -> None:
    model, model2 = net(), net(seed=1)
    optimizer, optimizer2 = build(model.parameters()), build(model2.parameters())
    train(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.125
    moved(tmp_path, {"model": model, "optim": optimizer}, {"model": model2, "optim": optimizer2})
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
    moved(
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
    moved(tmp_path, saved, fresh)
    assert same(saved["optim"].state_dict(), fresh["optim"].state_dict())


def test_a_compiled_module_has_the_names_of_the_original(tmp_path: Path) -> None:
    model, plain = net(), net(seed=1)
    moved(tmp_path / "1", {"model": torch.compile(model, backend="eager")}, {"model": plain})
    assert same(plain.state_dict(), model.state_dict())
    again = net(seed=2)
    moved(tmp_path / "2", {"model": plain}, {"model": torch.compile(again, backend="eager")})
    assert same(again.state_dict(), model.state_dict())


def test_a_module_in_ddp_has_the_names_of_the_original(tmp_path: Path) -> None:
    model, plain = net(), net(seed=1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        moved(tmp_path / "1", {"model": DistributedDataParallel(model)}, {"model": plain})
        assert same(plain.state_dict(), model.state_dict())
        again = net(seed=2)
        moved(tmp_path / "2", {"model": plain}, {"model": DistributedDataParallel(again)})
        assert same(again.state_dict(), model.state_dict())
    finally:
        dist.destroy_process_group()


def test_a_name_without_a_dot_is_needed() -> None:
    with pytest.raises(UsageError, match=r"'a\.b' cannot be the name"):
        State(**{"a.b": net()})


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
    moved(tmp_path, {"model": Extra("saved")}, {"model": model})
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
    moved(tmp_path, {"model": Halved(6.0)}, {"model": model})
    assert model.weight.tolist() == [6.0] * 3


def test_a_module_that_only_makes_a_tensor_to_save_it_has_it_back(tmp_path: Path) -> None:
    class Made(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.kept = nn.Parameter(torch.full((2,), value))

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}kept"] = self.kept.detach().clone()

    model = Made(0.0)
    moved(tmp_path, {"model": Made(4.0)}, {"model": model})
    assert model.kept.tolist() == [4.0, 4.0]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    def tied(value: float) -> nn.Sequential:
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        nn.init.constant_(first.weight, value)
        second.weight = first.weight
        return nn.Sequential(first, second)

    model = tied(0.0)
    moved(tmp_path, {"model": tied(5.0)}, {"model": model})
    assert model[0].weight is model[1].weight
    assert model[1].weight.eq(5.0).all()


def test_an_optimizer_in_use_keeps_its_memory(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    parts = {"model": model, "optim": optimizer}
    save(tmp_path, parts)
    averages = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    before = [(average.clone(), average.data_ptr()) for average in averages]
    train(model, optimizer)
    elastic.load(tmp_path, State(**parts))
    averages = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    assert same([(average, average.data_ptr()) for average in averages], before)


def test_an_optimizer_that_was_not_saved_keeps_its_state(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    before = optimizer.state_dict()["state"]
    moved(tmp_path, {"model": model}, {"model": model, "optim": optimizer}, strict=False)
    assert same(optimizer.state_dict()["state"], before)


def test_parameters_that_come_later_have_their_names_too(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    state = state_in(tmp_path, {"model": model, "optim": optimizer}, every=1)
    with trained(state):
        state.commit()
        model.append(nn.Linear(2, 2))
        optimizer.add_param_group({"params": list(model[-1].parameters())})
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state.commit()
    grown = net().append(nn.Linear(2, 2))
    fresh = torch.optim.Adam(grown[:-1].parameters())
    fresh.add_param_group({"params": list(grown[-1].parameters())})
    assert elastic.load(tmp_path, State(model=grown, optim=fresh)) == 2
    assert same(fresh.state_dict(), optimizer.state_dict())


def kept_otherwise(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> None:
    """A state that no cast to the type of its parameter would leave as it is."""
    optimizer.state[weight] = {
        "step": torch.tensor(3.0),
        "exp_avg": torch.full((2, 2), 1 / 3, dtype=torch.float32),
        "exp_avg_sq": torch.full((2, 2), 1 / 7, dtype=torch.float32),
        "codes": torch.tensor([1, 2], dtype=torch.int8),
    }
    optimizer.state["all"] = {"count": 5}


class AskedItself(torch.optim.Adam):  # type: ignore[misc]
    """Has a say in what is loaded."""

    asked = 0

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.asked += 1
        super().load_state_dict(state_dict)


def test_the_state_of_an_optimizer_comes_back_in_the_types_in_which_it_was_saved(
    tmp_path: Path,
) -> None:
    def job(kind: type[torch.optim.Adam]) -> tuple[torch.optim.Adam, dict[str, Any]]:
        model = nn.Linear(2, 2, bias=False).bfloat16()
        optimizer = kind(model.parameters())
        return optimizer, {"model": model, "optim": optimizer}

    optimizer, parts = job(torch.optim.Adam)
    kept_otherwise(optimizer, parts["model"].weight)
    save(tmp_path, parts)
    fresh, into = job(torch.optim.Adam)
    elastic.load(tmp_path, State(**into))
    weight = into["model"].weight
    assert same(fresh.state[weight], optimizer.state[parts["model"].weight])
    kinds = {key: value.dtype for key, value in fresh.state[weight].items()}
    assert kinds["exp_avg"] is torch.float32 and kinds["codes"] is torch.int8
    assert fresh.state["all"] == {"count": 5}
    asked, into = job(AskedItself)
    elastic.load(tmp_path, State(**into))
    assert isinstance(asked, AskedItself) and asked.asked == 1


def test_a_scheduler_with_milestones_goes_on(tmp_path: Path) -> None:
    def scheduler() -> torch.optim.lr_scheduler.LRScheduler:
        optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 3])

    saved, loaded = scheduler(), scheduler()
    loaded.milestones.clear()
    moved(tmp_path, {"scheduler": saved}, {"scheduler": loaded})
    assert loaded.state_dict() == saved.state_dict()
    assert type(loaded.milestones) is type(saved.milestones)


def test_an_optimizer_may_have_dots_in_its_keys(tmp_path: Path) -> None:
    saved, loaded = (torch.optim.SGD(net().parameters()) for _ in range(2))
    for parameter in saved.param_groups[0]["params"]:
        saved.state[parameter] = {"buffer.fast": torch.randn_like(parameter), "n.a": 3}
    moved(tmp_path, {"optim": saved}, {"optim": loaded})
    assert same(loaded.state_dict(), saved.state_dict())


# Values, and other owners of state


def test_plain_values_and_other_owners_of_state(tmp_path: Path) -> None:
    def job(best: float, log: list[Any]) -> dict[str, Any]:
        optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
        return {"optim": optimizer, "schedule": schedule, "best": best, "log": log}

    saved, loaded = job(0.5, [{"a": (1, None)}]), job(0.0, [])
    for _ in range(3):
        saved["optim"].step()
        saved["schedule"].step()
    state = moved(tmp_path, saved, loaded)
    assert (state.best, state.log) == (0.5, [{"a": (1, None)}])
    assert loaded["schedule"].last_epoch == 3
    assert loaded["optim"].param_groups[0]["lr"] == pytest.approx(0.1)


PLAIN: list[Any] = [None, 1.5, "text", b"bytes", 3 + 4j, [1, (2, {"a": {3}})], torch.ones(2)]
PLAIN += [torch.Size([2]), torch.float16, torch.device("cpu"), OrderedDict(a=1), Counter("aab")]


def test_a_value_comes_back_as_what_it_was(tmp_path: Path) -> None:
    values = {f"value{number}": value for number, value in enumerate(PLAIN)}
    state = moved(tmp_path, values, dict.fromkeys(values, 0))
    for name, value in values.items():
        found = getattr(state, name)
        assert type(found) is type(value)
        assert same(found, value)


Pair = namedtuple("Pair", "a b")


class Owner:
    """Has any state, and loads none."""

    def __init__(self, state: Any) -> None:
        self.own = state

    def state_dict(self) -> Any:
        return self.own

    def load_state_dict(self, state: Any) -> None:
        raise ValueError("not again")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.float64(1.0), r"best(\.rank-0)? is a numpy\.float64"),
        (Pair(1, 2), r"best(\.rank-0)? is a .*Pair"),
        ({"f": [0, len]}, r"best(\.rank-0)?\['f'\]\[1\] is a builtins\.builtin_function_or_method"),
        ({object(): 1}, r"best(\.rank-0)? is a builtins\.object"),
        (True.__class__, r"best(\.rank-0)? is a builtins\.type"),
    ],
)
@pytest.mark.parametrize("make", [PerRank, Owner])
def test_what_needs_code_to_be_loaded_is_not_saved_and_named_by_its_place(
    tmp_path: Path, make: Callable[[Any], Any], value: Any, what: str
) -> None:
    with pytest.raises(CheckpointUsageError, match=f"{what}.*plain values"):
        save(tmp_path, {"best": make(value)})


def test_a_value_that_turns_unsafe_later_fails_the_save_alone(tmp_path: Path) -> None:
    owner = Owner(1.0)
    state = state_in(tmp_path, {"owner": owner, "best": 1.0})
    with cut_off(state):
        state.commit()
        state.save(sync=True)
        owner.own, state.best = np.float64(2.0), 2.0
        state.commit()
        with pytest.raises(CheckpointUsageError, match=r"owner is a numpy\.float64"):
            state.save(sync=True)
    again = State(best=0.0)
    assert elastic.load(tmp_path, again, strict=False) == 1
    assert again.best == 1.0


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ({"model": nn.Linear(3, 5), "best": 1}, r"model\.weight with shape \(4, 3\).*\(5, 3\)"),
        (
            {"model": nn.Linear(3, 4, bias=False), "more": nn.Linear(1, 1, bias=False)},
            r"it lacks more\.weight; it also has model\.bias;",
        ),
        ({"model": nn.Linear(3, 4), "best": nn.Linear(1, 1)}, r"lacks best\.bias, best\.weight;"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, program: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointUsageError, match=told):
        moved(tmp_path, {"model": nn.Linear(3, 4), "best": 1}, program)


def test_weights_may_become_finer_or_coarser_but_not_another_kind(tmp_path: Path) -> None:
    model, coarse = nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16)
    moved(tmp_path, {"model": model}, {"model": coarse})
    assert torch.equal(coarse.weight, model.weight.bfloat16())
    counted = nn.Module()
    counted.register_buffer("weight", torch.zeros(2, 2, dtype=torch.int64))
    counted.register_buffer("bias", torch.zeros(2))
    with pytest.raises(CheckpointError, match=r"model\.weight as torch\.float32, which torch\.int"):
        elastic.load(tmp_path, State(model=counted))


def test_what_an_owner_refuses_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'picky' refused .*not again"):
        moved(tmp_path, {"picky": Owner(1)}, {"picky": Owner(1)})


def test_the_values_of_a_state_must_be_there_and_may_become_more(tmp_path: Path) -> None:
    def job(**values: int) -> dict[str, Any]:
        return {"model": nn.Linear(2, 2), **values}

    state = state_in(tmp_path, job(seen=7))
    with trained(state):
        with pytest.raises(UsageError, match="has no 'later', and training has begun"):
            state.later = 1
        state.commit()
    other = State(model=nn.Linear(2, 2))  # without values of its own
    elastic.load(tmp_path, other)
    assert other.seen == 7
    more = State(**job(seen=1, best=3))
    with pytest.raises(CheckpointUsageError, match=r"it lacks best;"):
        elastic.load(tmp_path, more)
    elastic.load(tmp_path, more, strict=False)
    assert (more.seen, more.best) == (7, 3)


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


# What moves on with each step


class Cursor:
    """Moves on with each step, as a sampler does."""

    def __init__(self) -> None:
        self.at = 0

    def commit(self) -> None:
        self.at += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_what_moves_on_with_each_step_does_so_and_goes_on_from_there(tmp_path: Path) -> None:
    """A layer, and the revision of somebody's code, have that name and do not."""
    for steps in (2, 4):
        layered, named, first, second = nn.Module(), Owner({}), Cursor(), Cursor()
        layered.commit = nn.Linear(1, 1)
        named.commit = "1f0e2a"  # type: ignore[attr-defined]
        named.load_state_dict = lambda state: None  # type: ignore[method-assign]
        parts = {"model": layered, "config": named, "first": first, "second": second}
        state = state_in(tmp_path, parts)
        with trained(state):
            state.commit()
            state.commit()
        assert (first.at, second.at) == (steps, steps)
