"""``fresh_accelerator``: what it prepares is kept, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.tracking import GeneralTracker
from accelerate.utils import DDPCommunicationHookType, ProjectConfiguration
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import elastic_runtime as elastic
from elastic_runtime.accelerate import ElasticAccelerator, fresh_accelerator
from elastic_runtime.accelerate.prepared_loaders import TrainingLoader
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.groups.kept_ddp import KeptDDP
from elastic_runtime.worker.round_breaks import end_break

if TYPE_CHECKING:
    from collections.abc import Callable

    Connect = Callable[[], None]

DATA = torch.linspace(-1, 1, 20)[:, None]


def parts(batch: int = 8, micro: int | None = None) -> tuple[Any, Any, Any, Any]:
    model = nn.Linear(1, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = elastic.ElasticBatchSampler(DATA, batch, micro_batch_size=micro)
    return model, optim, sampler, elastic.loader(DATA, sampler)


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


def test_other_settings_for_accumulation_are_refused() -> None:
    _, _, _, loader = parts(batch=8)
    accelerator = fresh_accelerator(gradient_accumulation_steps=4)
    with pytest.raises(UsageError, match=r"batch_size=32, micro_batch_size=8"):
        accelerator.prepare(loader)


class Stream(IterableDataset[Any]):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (DataLoader(DATA, batch_size=4, shuffle=True), "RandomSampler, which cannot go on"),
        (DataLoader(Stream()), "samples have no numbers"),
    ],
)
def test_loaders_without_a_position_are_refused(loader: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        fresh_accelerator().prepare(loader)


def test_nothing_is_trained_from_a_loader_for_evaluations(connect: Connect) -> None:
    model, optim, _, _ = parts()
    accelerator = fresh_accelerator()
    connect()
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
    with pytest.raises(UsageError, match=f"{named} does not go on in place"):
        fresh_accelerator(**settings)


def test_ranks_that_are_connected_already_are_refused(connect: Connect) -> None:
    connect()
    with pytest.raises(UsageError, match="ranks are connected already"):
        ElasticAccelerator(in_place=True)


def test_a_communication_hook_is_refused() -> None:
    hook = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    model, _, _, _ = parts()
    with pytest.raises(UsageError, match="belongs to the ranks of one world"):
        fresh_accelerator(kwargs_handlers=[hook]).prepare(model)


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


def test_metrics_of_training_data_leave_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three ranks of one process: each gathers what the first one gives.
    _, _, sampler, loader = parts(batch=8)
    accelerator = fresh_accelerator()
    batches = accelerator.prepare(loader)
    end_break(0, 3)
    sampler._place = (0, 3)
    monkeypatch.setattr(
        ElasticAccelerator, "gather", lambda self, tensor: torch.cat([tensor, tensor, tensor])
    )
    for inputs in batches:
        assert len(inputs) == 3  # of 8, the others have 3 and 2
        gathered = accelerator.gather_for_metrics({"in": inputs})["in"]
        assert gathered[:, 0].tolist() == [*inputs[:, 0].tolist()] * 2 + inputs[:2, 0].tolist()
        break
