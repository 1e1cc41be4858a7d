"""The rows of the table that are about loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed.checkpoint as dcp

from elastic_runtime.parts.tensor_memory import bytes_of
from scripts.bench.checkpoints import limits
from scripts.bench.checkpoints.contest import Sample, Stage, local, saver, timed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from elastic_runtime import State

LOAD = "load from the page cache"
RESTORE = "restore from shared memory"


def load(stage: Stage) -> list[Sample]:
    """How long it takes to load what has just been saved."""
    model = stage.model()
    tensors = [local(parameter) for parameter in model]
    whole = stage.disk / f"torch-{stage.rank}"
    torch.save(tensors, whole)
    held = {key: value.detach() for key, value in model.state_dict().items()}
    theirs = stage.disk / "dcp"
    dcp.save(held, storage_writer=dcp.FileSystemWriter(theirs, sync_files=False))

    def plain() -> None:
        loaded = torch.load(whole, weights_only=True)
        for tensor, found in zip(tensors, loaded, strict=True):
            tensor.copy_(found)

    with stage.trained(stage.disk / "ours", model) as state:
        _save(state)
        samples = stage.compete(
            LOAD,
            {
                "limit": _limit(_own_file(stage, stage.disk / "ours")),
                "ours": lambda: timed(lambda: saver(state).load(None)),
                "torch.save": lambda: timed(plain),
                "dcp": lambda: timed(
                    lambda: dcp.load(held, storage_reader=dcp.FileSystemReader(theirs))
                ),
            },
        )
    stage.clear(theirs)
    whole.unlink()
    return samples


def restore(stage: Stage) -> list[Sample]:
    """The same from shared memory, where a snapshot survives the worker."""
    model = stage.model()
    with stage.trained(stage.memory / "ours", model) as state:
        _save(state)
        return stage.compete(
            RESTORE,
            {
                "limit": _limit(_own_file(stage, stage.memory / "ours")),
                "ours": lambda: timed(lambda: saver(state).load(None)),
            },
        )


def _save(state: State) -> None:
    state.commit()
    state.save(sync=True)


def _own_file(stage: Stage, where: Path) -> Path:
    (checkpoint,) = where.glob("step-*")
    return checkpoint / f"rank-{stage.rank}.distcp"


def _limit(path: Path) -> Callable[[], float]:
    memory = bytes_of(torch.zeros(path.stat().st_size, dtype=torch.uint8))
    return lambda: timed(lambda: limits.read(path, memory))
