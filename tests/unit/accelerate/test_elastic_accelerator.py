"""``fresh_accelerator``: what it prepares is kept, follows the world, or is refused."""

from __future__ import annotations

import gc
import os
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState
from accelerate.tracking import GeneralTracker
from accelerate.utils import (
    DDPCommunicationHookType,
    GradientAccumulationPlugin,
    ProjectConfiguration,
)
from torch import nn
from torch.utils.data import ChainDataset, DataLoader

import elastic_runtime as elastic
from elastic_runtime.accelerate import ElasticAccelerator, accelerate_world, fresh_accelerator
from elastic_runtime.accelerate.evaluation_loader import EvaluationLoader
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context
from elastic_runtime.worker.groups.kept_ddp import KeptDDP
from elastic_runtime.worker.round_breaks import begin_break, end_break, end_breaks
from tests.unit.accelerate.small_parts import DATA, parts
from tests.unit.transformers.hf_trainers import trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    Connect = Callable[[], None]
    from pathlib import Path


def test_each_call_gives_the_same() -> None:
    accelerator = fresh_accelerator(mixed_precision="bf16")
    assert isinstance(accelerator, Accelerator) and not dist.is_initialized()
    assert fresh_accelerator() is accelerator
    assert fresh_accelerator(mixed_precision="bf16") is accelerator
    with pytest.raises(UsageError, match="with other settings than before"):
        fresh_accelerator(mixed_precision="no")


def test_what_was_prepared_is_given_again() -> None:
    model, optim = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optim, 1)
    held = DataLoader(DATA, batch_size=5)
    accelerator = fresh_accelerator(mixed_precision="bf16")
    made = accelerator.prepare(model, optim, schedule, held)
    forward = model.forward
    for given in ((model, optim, schedule, held), made):
        again = accelerator.prepare(*given)
        assert all(one is other for one, other in zip(again, made, strict=True))
    assert model.forward is forward or model.forward == forward  # no autocast in another one
    assert isinstance(made[0], KeptDDP) and isinstance(made[3], EvaluationLoader)
    assert len(accelerator._models) == len(accelerator._dataloaders) == 1
    assert accelerator.unwrap_model(made[0]) is model


def test_a_loader_of_ours_needs_no_preparation() -> None:
    loader = elastic.DataLoader(DATA, 8)
    assert fresh_accelerator().prepare(loader) is loader


def test_a_schedule_steps_once_a_step_in_any_world() -> None:
    model, optim = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optim, 1, gamma=0.5)
    accelerator = fresh_accelerator()
    _, stepper, stepped = accelerator.prepare(model, optim, schedule)
    end_break(0, 4)
    stepper.step()
    stepped.step()
    assert stepped.get_last_lr() == [0.05]


@pytest.mark.parametrize("at_once", [None, 3])
def test_a_gradient_is_that_of_the_whole_batch(
    accelerator: ElasticAccelerator, at_once: int | None
) -> None:
    model, optim = parts()
    parallel, stepper = accelerator.prepare(model, optim)
    count = 0
    for step in elastic.DataLoader(DATA, 8, at_once=at_once).steps(epochs=1):
        seen = []
        for inputs in step:
            seen.append(inputs)
            loss = (parallel(inputs) - 1).square().mean()
            accelerator.backward(loss * step.weight)
        assert accelerator.sync_gradients
        own, model.weight.grad = model.weight.grad, None
        (model(torch.cat(seen)) - 1).square().mean().backward()
        assert own.item() == pytest.approx(model.weight.grad.item(), abs=1e-6)
        stepper.step()
        stepper.zero_grad()
        count += 1
    assert count == 3


def test_settings_of_ddp_reach_it() -> None:
    settings = DistributedDataParallelKwargs(find_unused_parameters=True, bucket_cap_mb=3)
    model, _ = parts()
    made = fresh_accelerator(kwargs_handlers=[settings]).prepare(model)
    assert made._elastic_options["find_unused_parameters"] is True
    assert made._elastic_options["bucket_cap_mb"] == 3


def test_a_frozen_model_is_not_wrapped() -> None:
    model = nn.Linear(1, 1).requires_grad_(False)
    assert fresh_accelerator().prepare(model) is model


class Remembering(GeneralTracker):
    """Keeps what is logged."""

    name = "remembering"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Any] = []

    @property
    def tracker(self) -> Any:
        return self.lines

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.lines.append(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.lines.append((step, values))

    def finish(self) -> None:
        self.lines.append("finished")


def tracked(folder: Path) -> tuple[Remembering, ElasticAccelerator]:
    """A tracker, and an accelerator that logs with it."""
    tracker, where = Remembering(), ProjectConfiguration(project_dir=str(folder))
    return tracker, fresh_accelerator(log_with=tracker, project_config=where)


def test_a_tracker_is_made_by_who_logs_as_rank_0(tmp_path: Any, connect: Connect) -> None:
    tracker, accelerator = tracked(tmp_path)
    accelerator.init_trackers("project", config={"lr": 1})
    assert not tracker.lines, "another process is rank 0 perhaps"
    connect()
    end_break(1, 2)
    accelerator.log({"loss": 3}, step=1)
    assert not tracker.lines
    end_break(0, 1)
    accelerator.log({"loss": 2}, step=2)
    accelerator.init_trackers("project", config={"lr": 1})  # in the next call of train
    accelerator.log({"loss": 1}, step=3)
    accelerator.end_training()
    assert dist.is_initialized()
    assert tracker.lines == [{"lr": 1}, (2, {"loss": 2}), (3, {"loss": 1}), "finished"]


def test_a_final_word_is_logged_by_rank_0(tmp_path: Any, connect: Connect) -> None:
    tracker, accelerator = tracked(tmp_path)
    accelerator.init_trackers("project")
    accelerator.log({"early": 1})
    connect()
    dist.destroy_process_group()
    with context().running_in_place():
        pass
    end_breaks()
    accelerator.log({"accuracy": 1})
    assert tracker.lines == [(None, {"accuracy": 1})]


def test_what_accelerate_counts_is_no_other_setting(tmp_path: Any) -> None:
    def settings() -> ProjectConfiguration:
        return ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)

    accelerator = fresh_accelerator(project_config=settings())
    accelerator.save_state()
    assert fresh_accelerator(project_config=settings()) is accelerator
    with pytest.raises(UsageError, match="with other settings"):
        fresh_accelerator(in_place=False)


def test_an_evaluation_that_is_left_early_is_over(accelerator: ElasticAccelerator) -> None:
    for _ in accelerator.prepare(DataLoader(DATA, batch_size=5)):
        break
    accelerator.backward(torch.ones((), requires_grad=True))
    assert accelerator.gradient_state.active_dataloader is None


def test_nothing_is_skipped_of_training_data_and_of_others_a_ranks_own(
    accelerator: ElasticAccelerator,
) -> None:
    held = accelerator.prepare(DataLoader(DATA, batch_size=5))
    with pytest.raises(UsageError, match="begins where the job is"):
        accelerator.skip_first_batches(elastic.DataLoader(DATA, 8), 1)
    assert len(list(accelerator.skip_first_batches(held, 1))) == 3


def test_device_placement_of_another_length_is_accelerates_to_refuse() -> None:
    with pytest.raises(ValueError, match="device_placement"):
        fresh_accelerator().prepare(*parts(), device_placement=[True])


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 4},
        {"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=2)},
    ],
)
def test_settings_for_accumulation_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="at_once=8"):
        fresh_accelerator(**settings)


def test_loaders_without_a_position_are_refused() -> None:
    accelerator = fresh_accelerator()
    with pytest.raises(UsageError, match="RandomSampler, which cannot go on"):
        accelerator.prepare(DataLoader(DATA, batch_size=4, shuffle=True))
    with pytest.raises(UsageError, match="samples have no numbers"):
        accelerator.prepare(DataLoader(ChainDataset([])))


def test_nothing_is_trained_from_a_loader_for_evaluations(accelerator: ElasticAccelerator) -> None:
    model, optim = parts()
    parallel, _, held = accelerator.prepare(model, optim, DataLoader(DATA, batch_size=5))
    with pytest.raises(UsageError, match="nobody knows which of them have counted"):
        for inputs in held:
            accelerator.backward(parallel(inputs).mean())


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        ({"fsdp_plugin": object()}, {}),
        ({"deepspeed_plugin": object()}, {}),
        ({"parallelism_config": object()}, {}),
        ({}, {"ACCELERATE_USE_FSDP": "true"}),
        ({}, {"ACCELERATE_USE_MEGATRON_LM": "True"}),
    ],
)
def test_what_does_not_go_on_in_place_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], environ: dict[str, str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    named = (*settings, *environ)[0]
    with pytest.raises(UsageError, match=rf"{named}( \(.*\))? does not go on in place"):
        fresh_accelerator(**settings)


def test_ranks_that_are_connected_already_are_refused(connect: Connect) -> None:
    connect()
    with pytest.raises(UsageError, match="ranks are connected already"):
        ElasticAccelerator(in_place=True)


def test_a_communication_hook_is_refused() -> None:
    hook = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    model, _ = parts()
    with pytest.raises(UsageError, match="belongs to the ranks of one world"):
        fresh_accelerator(kwargs_handlers=[hook]).prepare(model)


def test_a_state_of_accelerates_is_loaded_before_the_run(tmp_path: Any) -> None:
    accelerator = fresh_accelerator()
    accelerator.prepare(*parts())
    accelerator.save_state(str(tmp_path / "saved"))
    accelerator.load_state(str(tmp_path / "saved"))
    with context().running_in_place(), pytest.raises(UsageError, match=r"before elastic\.run"):
        accelerator.load_state(str(tmp_path / "saved"))


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
    outside = DataLoader(DATA, batch_size=5)
    kept = accelerator.prepare(outside)
    for _ in range(3):
        end_break(0, 1)
        with context().running_in_place():
            inside = DataLoader(DATA, batch_size=5)
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
