"""What an accelerator of an elastic job cannot do, it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import DistributedDataParallelKwargs
from accelerate.utils import DDPCommunicationHookType
from torch.utils.data import DataLoader, IterableDataset

from elastic_runtime.accelerate import ElasticAccelerator, fresh_accelerator
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context
from tests.unit.accelerate.small_parts import DATA, parts

if TYPE_CHECKING:
    from collections.abc import Callable

    Connect = Callable[[], None]


def test_other_settings_for_accumulation_are_refused() -> None:
    _, _, _, loader = parts(batch=8)
    accelerator = fresh_accelerator(gradient_accumulation_steps=4)
    with pytest.raises(UsageError, match=r"batch_size=32, micro_batch_size=8"):
        accelerator.prepare(loader)


class Stream(IterableDataset[Any]):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(range(3))


def test_loaders_without_a_position_are_refused() -> None:
    accelerator = fresh_accelerator()
    with pytest.raises(UsageError, match="RandomSampler, which cannot go on"):
        accelerator.prepare(DataLoader(DATA, batch_size=4, shuffle=True))
    with pytest.raises(UsageError, match="samples have no numbers"):
        accelerator.prepare(DataLoader(Stream()))


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
    with pytest.raises(UsageError, match=rf"{named}( \(.*\))? does not go on in place"):
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


def test_two_loaders_at_once_must_count_alike(connect: Connect) -> None:
    accelerator = fresh_accelerator()
    connect()
    one, same = (accelerator.prepare(parts(batch=8)[3]) for _ in range(2))
    other = accelerator.prepare(parts(batch=10)[3])
    for _ in zip(one, same, strict=True):
        accelerator.backward(torch.ones((), requires_grad=True))
        break
    with pytest.raises(UsageError, match="do not count alike"):
        for _ in zip(one, other, strict=False):
            accelerator.backward(torch.ones((), requires_grad=True))


def test_a_state_of_accelerates_is_loaded_before_the_run(tmp_path: Any) -> None:
    accelerator = fresh_accelerator()
    accelerator.prepare(*parts()[:2])
    accelerator.save_state(str(tmp_path / "saved"))
    accelerator.load_state(str(tmp_path / "saved"))
    with context().running_in_place(), pytest.raises(UsageError, match=r"before elastic\.run"):
        accelerator.load_state(str(tmp_path / "saved"))
