"""An accelerator is told of each world, and what was made for one is forgotten with it."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from elastic_runtime.accelerate import fresh_accelerator
from elastic_runtime.worker.context import context
from elastic_runtime.worker.round_breaks import begin_break, end_break, end_breaks
from tests.unit.accelerate.small_parts import DATA, parts

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Connect = Callable[[], None]


def test_it_knows_the_ranks_of_each_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    accelerator = fresh_accelerator()
    assert (accelerator.num_processes, accelerator.process_index) == (1, 1)
    assert not accelerator.is_main_process  # another one is, which trains perhaps
    held = accelerator.prepare(DataLoader(DATA, batch_size=5))
    for rank, world, batches in ((1, 2, 2), (0, 1, 4)):
        end_break(rank, world)
        assert (accelerator.process_index, accelerator.num_processes) == (rank, world)
        assert len(held) == batches
    assert len(accelerator._dataloaders) == 1


def test_after_the_run_nothing_waits_for_others(connect: Connect) -> None:
    accelerator = fresh_accelerator()
    held = accelerator.prepare(DataLoader(DATA, batch_size=5))
    connect()
    end_break(1, 2)
    assert len(held) == 2
    dist.destroy_process_group()
    end_breaks()
    accelerator.wait_for_everyone()
    assert (accelerator.num_processes, accelerator.process_index) == (1, 1)
    assert accelerator.gather(torch.ones(2)).tolist() == [1, 1] and len(held) == 4


def test_loaders_that_train_makes_are_forgotten_with_its_world() -> None:
    accelerator = fresh_accelerator()
    _, _, _, outside = parts()
    kept = accelerator.prepare(outside)
    for _ in range(3):
        end_break(0, 1)
        with context().running_in_place():
            _, _, _, inside = parts()
            gone = weakref.ref(inside)
            made = accelerator.prepare(inside, DataLoader(DATA, batch_size=5))
            assert len(accelerator._dataloaders) == 3
        del inside, made
        begin_break()
        gc.collect()
        assert gone() is None and accelerator._dataloaders == [kept]
    assert accelerator.prepare(outside) is kept


def test_free_memory_leaves_loaders_in_their_worlds() -> None:
    accelerator = fresh_accelerator()
    held = accelerator.prepare(DataLoader(DATA, batch_size=5))
    end_break(0, 2)
    assert len(held) == 2
    accelerator.free_memory()
    end_break(0, 1)
    assert len(held) == 4
