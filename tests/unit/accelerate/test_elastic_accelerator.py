"""``fresh_accelerator``: what it prepares is kept, and counts as it does for one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.tracking import GeneralTracker
from accelerate.utils import ProjectConfiguration
from torch import nn
from torch.utils.data import DataLoader

from elastic_runtime.accelerate import fresh_accelerator
from elastic_runtime.accelerate.prepared_loaders import TrainingLoader
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context
from elastic_runtime.worker.groups.kept_ddp import KeptDDP
from elastic_runtime.worker.round_breaks import end_break, end_breaks
from tests.unit.accelerate.small_parts import DATA, parts

if TYPE_CHECKING:
    from collections.abc import Callable

    Connect = Callable[[], None]


def test_each_call_gives_the_same() -> None:
    accelerator = fresh_accelerator(mixed_precision="bf16")
    assert isinstance(accelerator, Accelerator) and not dist.is_initialized()
    assert fresh_accelerator() is accelerator
    assert fresh_accelerator(mixed_precision="bf16") is accelerator
    with pytest.raises(UsageError, match="with other settings than before"):
        fresh_accelerator(mixed_precision="no")


def test_what_was_prepared_is_given_again() -> None:
    model, optim, _, loader = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optim, 1)
    accelerator = fresh_accelerator(mixed_precision="bf16")
    made = accelerator.prepare(model, optim, schedule, loader)
    forward = model.forward
    for given in ((model, optim, schedule, loader), made):
        again = accelerator.prepare(*given)
        assert all(one is other for one, other in zip(again, made, strict=True))
    assert model.forward is forward or model.forward == forward  # no autocast in another one
    assert isinstance(made[0], KeptDDP) and isinstance(made[3], TrainingLoader)
    assert len(accelerator._models) == len(accelerator._dataloaders) == 1
    assert accelerator.unwrap_model(made[0]) is model


def test_a_schedule_steps_once_a_step_in_any_world() -> None:
    model, optim, _, _ = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optim, 1, gamma=0.5)
    accelerator = fresh_accelerator()
    _, stepper, stepped = accelerator.prepare(model, optim, schedule)
    end_break(0, 4)
    stepper.step()
    stepped.step()
    assert stepped.get_last_lr() == [0.05]


@pytest.mark.parametrize("micro", [None, 3])
def test_a_gradient_is_that_of_the_whole_batch(connect: Connect, micro: int | None) -> None:
    model, optim, sampler, loader = parts(batch=8 if micro is None else 9, micro=micro)
    accelerator = fresh_accelerator()
    connect()
    parallel, stepper, batches = accelerator.prepare(model, optim, loader)
    seen, gradients = [], []
    for inputs in batches:
        seen.append(inputs)
        with accelerator.accumulate(parallel):
            accelerator.backward((parallel(inputs) - 1).square().mean())
            if accelerator.sync_gradients:
                own, model.weight.grad = model.weight.grad, None
                (model(torch.cat(seen)) - 1).square().mean().backward()
                gradients.append((own.item(), model.weight.grad.item()))
            stepper.step()
            stepper.zero_grad()
        if accelerator.sync_gradients:
            sampler.commit()
            seen = []
    assert len(gradients) == 3
    for own, whole in gradients:
        assert own == pytest.approx(whole, abs=1e-6)


def test_settings_for_accumulation_follow_from_the_sampler() -> None:
    _, _, _, loader = parts(batch=8, micro=2)
    accelerator = fresh_accelerator()
    accelerator.prepare(loader)
    assert accelerator.gradient_accumulation_steps == 4


def test_settings_of_ddp_reach_it() -> None:
    settings = DistributedDataParallelKwargs(find_unused_parameters=True, bucket_cap_mb=3)
    model, _, _, _ = parts()
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


def test_a_tracker_is_made_by_who_logs_as_rank_0(tmp_path: Any, connect: Connect) -> None:
    tracker = Remembering()
    where = ProjectConfiguration(project_dir=str(tmp_path))
    accelerator = fresh_accelerator(log_with=tracker, project_config=where)
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
    tracker = Remembering()
    where = ProjectConfiguration(project_dir=str(tmp_path))
    accelerator = fresh_accelerator(log_with=tracker, project_config=where)
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


def test_the_order_of_loaders_decides_nothing() -> None:
    accelerator = fresh_accelerator()
    for micro in (None, 2, None):
        accelerator.prepare(parts(batch=8, micro=micro)[3])


def test_an_evaluation_that_is_left_early_is_over(connect: Connect) -> None:
    accelerator = fresh_accelerator()
    connect()
    training, held = accelerator.prepare(parts()[3], DataLoader(DATA, batch_size=5))
    for _ in training:
        for _ in held:
            break
        accelerator.backward(torch.ones((), requires_grad=True))
        break
    assert accelerator.gradient_state.active_dataloader is None


def test_nothing_is_skipped_of_training_data_and_of_others_a_ranks_own(connect: Connect) -> None:
    accelerator = fresh_accelerator()
    connect()
    training, held = accelerator.prepare(parts()[3], DataLoader(DATA, batch_size=5))
    with pytest.raises(UsageError, match="begins where the job is"):
        accelerator.skip_first_batches(training, 1)
    assert len(list(accelerator.skip_first_batches(held, 1))) == 3


def test_device_placement_of_another_length_is_accelerates_to_refuse() -> None:
    model, optim, _, loader = parts()
    with pytest.raises(ValueError, match="device_placement"):
        fresh_accelerator().prepare(model, optim, loader, device_placement=[True])
