"""Modules, optimizers and other owners of state: saved by name, and given back what was theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.entries.flat_state import Entries
from elastic_runtime.errors import CheckpointError
from elastic_runtime.worker.state.wrappers import unwrapped

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


@pytest.mark.parametrize("build", OPTIMIZERS)
def test_a_fresh_optimizer_goes_on_as_the_saved_one(
    tmp_path: Path, build: Callable[[Any], torch.optim.Optimizer]
) -> None:
    model = net()
    optimizer = build(model.parameters())
    train(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.125
    Checkpointer(tmp_path, {"model": model, "optim": optimizer}).save(sync=True)

    model2 = net(seed=1)
    optimizer2 = build(model2.parameters())
    Checkpointer(tmp_path, {"model": model2, "optim": optimizer2}).resume()
    assert same(model.state_dict(), model2.state_dict())
    assert same(optimizer.state_dict(), optimizer2.state_dict())
    train(model, optimizer)
    train(model2, optimizer2)
    assert same(model.state_dict(), model2.state_dict())


def test_the_state_goes_by_the_names_of_the_parameters(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    Checkpointer(tmp_path, {"model": model, "optim": optimizer}).save(sync=True)

    model2 = net()
    reversed_order = torch.optim.Adam(reversed(list(model2.parameters())))
    Checkpointer(tmp_path, {"model": model2, "optim": reversed_order}).resume()
    saved = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    loaded = [reversed_order.state[p]["exp_avg"] for p in model2.parameters()]
    assert same(saved, loaded)


def test_a_parameter_that_was_never_used_has_no_state(tmp_path: Path) -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "spare": nn.Linear(2, 2)})
    optimizer = torch.optim.Adam(model.parameters())
    model["used"](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    Checkpointer(tmp_path, {"model": model, "optim": optimizer}).save(sync=True)

    fresh = nn.ModuleDict({"used": nn.Linear(2, 2), "spare": nn.Linear(2, 2)})
    fresh_optimizer = torch.optim.Adam(fresh.parameters())
    Checkpointer(tmp_path, {"model": fresh, "optim": fresh_optimizer}).resume()
    assert same(optimizer.state_dict(), fresh_optimizer.state_dict())


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
    Checkpointer(tmp_path, {"model": Extra("saved")}).save(sync=True)
    model = Extra("fresh")
    Checkpointer(tmp_path, {"model": model}).resume()
    assert model.words == "saved"


class Halved(nn.Module):
    """Is saved as something else than it has in memory."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), value))
        self.register_state_dict_post_hook(_halve)
        self.register_load_state_dict_pre_hook(_double)


def _halve(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    state[f"{prefix}weight"] = state[f"{prefix}weight"] / 2


def _double(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2


def test_the_hooks_of_a_module_are_heard(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": Halved(6.0)}).save(sync=True)
    model = Halved(1.0)
    Checkpointer(tmp_path, {"model": model}).resume()
    assert model.weight.tolist() == [6.0] * 3


def test_a_module_that_only_makes_a_tensor_to_save_it_has_it_back(tmp_path: Path) -> None:
    class Made(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.kept = nn.Parameter(torch.full((2,), value))

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}kept"] = self.kept.detach().clone()

    Checkpointer(tmp_path, {"model": Made(4.0)}).save(sync=True)
    model = Made(0.0)
    Checkpointer(tmp_path, {"model": model}).resume()
    assert model.kept.tolist() == [4.0, 4.0]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    def tied(value: float) -> nn.Sequential:
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        nn.init.constant_(first.weight, value)
        second.weight = first.weight
        return nn.Sequential(first, second)

    Checkpointer(tmp_path, {"model": tied(5.0)}).save(sync=True)
    model = tied(0.0)
    Checkpointer(tmp_path, {"model": model}).resume()
    assert model[0].weight is model[1].weight
    assert model[1].weight.eq(5.0).all()


def test_an_optimizer_in_use_keeps_its_memory(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    ckpt = Checkpointer(tmp_path, {"model": model, "optim": optimizer})
    ckpt.save(sync=True)
    saved = {id(p): optimizer.state[p]["exp_avg"].clone() for p in model.parameters()}
    places = {id(p): optimizer.state[p]["exp_avg"].data_ptr() for p in model.parameters()}
    train(model, optimizer)
    ckpt.resume()
    for parameter in model.parameters():
        assert torch.equal(optimizer.state[parameter]["exp_avg"], saved[id(parameter)])
        assert optimizer.state[parameter]["exp_avg"].data_ptr() == places[id(parameter)]


def test_an_optimizer_that_was_not_saved_keeps_its_state(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    Checkpointer(tmp_path, {"model": model}).save(sync=True)
    before = optimizer.state_dict()["state"]
    Checkpointer(tmp_path, {"model": model, "optim": optimizer}).resume(strict=False)
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

    Checkpointer(tmp_path, {"scheduler": (saved := scheduler())}).save(sync=True)
    loaded = scheduler()
    loaded.milestones.clear()
    Checkpointer(tmp_path, {"scheduler": loaded}).resume()
    assert loaded.state_dict() == saved.state_dict()
    assert type(loaded.milestones) is type(saved.milestones)


def test_an_optimizer_may_have_dots_in_its_keys(tmp_path: Path) -> None:
    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.SGD(net().parameters())

    saved, loaded = optimizer(), optimizer()
    for parameter in saved.param_groups[0]["params"]:
        saved.state[parameter] = {"buffer.fast": torch.randn_like(parameter), "n.a": 3}
    Checkpointer(tmp_path, {"optim": saved}).save(sync=True)
    Checkpointer(tmp_path, {"optim": loaded}).resume()
    assert same(loaded.state_dict(), saved.state_dict())
