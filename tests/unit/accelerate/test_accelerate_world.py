"""What accelerate knows of the ranks follows the world."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState

from elastic_runtime.accelerate import accelerate_world
from tests.unit.transformers.hf_trainers import trainer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_everything_that_refers_to_accelerate_sees_the_world(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    accelerate_world.enter(1, 3, 1)
    assert (made.args.world_size, made.args.process_index) == (3, 1)
    assert (made.accelerator.num_processes, made.accelerator.process_index) == (3, 1)
    assert made.accelerator.distributed_type == DistributedType.MULTI_CPU
    assert AcceleratorState().local_process_index == PartialState().local_process_index == 1
    accelerate_world.stand_alone(1, 1)
    assert (made.args.world_size, made.args.process_index) == (1, 1)
    assert made.accelerator.distributed_type == DistributedType.NO
    assert not made.is_world_process_zero()


def test_loaders_of_the_last_world_are_forgotten(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    loader = made.get_train_dataloader()
    batches = iter(loader)
    next(batches)
    assert GradientState().in_dataloader
    accelerate_world.enter(0, 1, 0)
    assert not made.accelerator.gradient_state.in_dataloader


def test_without_launcher_nothing_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with accelerate_world.without_launcher():
        assert Accelerator(cpu=True).num_processes == 1
    assert os.environ["WORLD_SIZE"] == "2"
