"""An accelerator for each test, and a world for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState

from elastic_runtime.accelerate import elastic_accelerator, fresh_accelerator
from elastic_runtime.worker.context import context
from elastic_runtime.worker.round_breaks import end_break

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.accelerate import ElasticAccelerator


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No accelerator is left over from another test, and none is left."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(elastic_accelerator, "_made", None)
    monkeypatch.setattr(elastic_accelerator, "_settings", {})
    yield
    context().in_place = context().was_in_place = False
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def connect() -> Iterator[Callable[[], None]]:
    """Connects this process alone, and says so, as ``elastic.run`` does."""

    def as_one_rank() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        end_break(0, 1)

    yield as_one_rank
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def accelerator(connect: Callable[[], None]) -> ElasticAccelerator:
    """One whose ranks are connected: this process alone."""
    made = fresh_accelerator()
    connect()
    return made
