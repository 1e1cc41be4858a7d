"""A small model that several ranks train by ``elastic.run``, and how they are connected for that.

The ranks are those of ``tests.ranks``, which has made a process group by then: they leave it, and
meet in a store as under a launcher.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import elastic_runtime as elastic
from elastic_runtime.training import run_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.diloco.diloco import DiLoCo
    from elastic_runtime.worker.world import World

# Values of the parameters, in a row.
Row = list[float]


class Launcher:
    """Lets this rank call ``elastic.run`` as under a launcher, in one world after the other."""

    def __init__(self, worlds: int = 1) -> None:
        """Leaves the group of the test, which all ranks must do.

        Args:
            worlds: how many there will be; ranks meet in a store of its own for each of them.
        """
        self._ports: list[int] = []
        # Rank 0 has those that are used.
        self._stores = [
            dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            for _ in range(worlds)
        ]
        if not dist.is_initialized():  # this rank is alone, and without a launcher
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
                del os.environ[name]
            return
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, [store.port for store in self._stores])
        dist.destroy_process_group()
        self._ports = everyones[0]
        os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_USE_AGENT_STORE="True")

    def run(
        self,
        train: Callable[[World], Any],
        state: elastic.State,
        *,
        world: int = 0,
        size: int = 0,
    ) -> Any:
        """``elastic.run``.

        Args:
            train, state: its arguments.
            world: which, from 0.
            size: how many ranks it has; 0: all.
        """
        if self._ports:
            os.environ["MASTER_PORT"] = str(self._ports[world])
        if size:
            os.environ["WORLD_SIZE"] = str(size)
        with mock.patch.object(run_loop, "_ran", False):
            return elastic.run(train, state)


def net(seed: int) -> nn.Sequential:
    """Four parameters, which two fragments share as 16 and 10 elements."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def with_statistics(seed: int) -> nn.Sequential:
    """A model with buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def row(tensors: Any) -> Row:
    """The values of tensors or of a module's parameters."""
    found = tensors.parameters() if isinstance(tensors, nn.Module) else tensors
    return [value for tensor in found for value in tensor.detach().flatten().tolist()]


def inner_step(replica: nn.Module, inner: torch.optim.Optimizer, rank: int, step: int) -> None:
    """What a rank does in an inner step, all by itself."""
    chance = torch.Generator().manual_seed(1000 * rank + step)
    inputs, targets = torch.randn(6, 3, generator=chance), torch.randn(6, 2, generator=chance)
    inner.zero_grad()
    nn.functional.mse_loss(replica(inputs), targets).backward()
    inner.step()


def adamw(replica: nn.Module) -> torch.optim.Optimizer:
    """The inner optimizer."""
    return torch.optim.AdamW(replica.parameters(), lr=0.05)


def nesterov(model: nn.Module) -> torch.optim.SGD:
    """The outer optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


class Job:
    """The objects of a script, another model on each rank until training begins."""

    def __init__(
        self,
        *,
        average: bool = False,
        make: Callable[[int], nn.Sequential] = net,
        seed: int | None = None,
        parts: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Makes them.

        Args:
            average: ``LocalSGD`` instead of ``DiLoCo``.
            make: makes the model, from a seed.
            seed: this; None: the rank.
            parts: more parts of the State.
            **options: of ``DiLoCo``.
        """
        self.model = make(int(os.environ.get("RANK", "0")) if seed is None else seed)
        self.replica = copy.deepcopy(self.model)
        self.inner = adamw(self.replica)
        more = parts or {}
        options = {"inner": self.inner, "sync_every": 3, **options}
        self.diloco: DiLoCo
        if average:
            self.state = elastic.State(model=self.model, **more)
            self.diloco = elastic.LocalSGD(self.state, self.replica, **options)
        else:
            outer = nesterov(self.model)
            self.state = elastic.State(model=self.model, outer=outer, **more)
            self.diloco = elastic.DiLoCo(self.state, self.replica, outer=outer, **options)
        self.made = 0  # inner steps
        self.commons: list[Row] = []  # after each sync
        self.owns: list[Row] = []  # right before it

    def step(self, world: World) -> bool:
        """One inner step with all that belongs to it; says whether it was a sync."""
        self.made += 1
        inner_step(self.replica, self.inner, world.rank, self.made)
        return self.come_together()

    def come_together(self) -> bool:
        """Notes the models before and after a sync."""
        own = row(self.replica)
        if synced := self.diloco.step():
            self.owns.append(own)
            self.commons.append(row(self.model))
        return synced
