"""The rows of the table that are about saving."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from scripts.bench.checkpoints import limits
from scripts.bench.checkpoints.contest import Sample, Stage, local, saver, timed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from elastic_runtime import State

BLOCKED = "blocked by an asynchronous save"
DURABLE = "durable save"
TINY = "2000 tiny tensors: save"
EXTRA = "extra memory of a save in flight"
SLOWDOWN = "slowdown of training meanwhile"

_TINY_COUNT = 2000
_QUIET_STEPS = 100


class Rival:
    """Saves with ``torch.distributed.checkpoint``, each time into a new directory."""

    def __init__(self, stage: Stage, name: str, model: nn.Module, *, cached: bool = False) -> None:
        """Takes what to save.

        Args:
            stage: where.
            name: of its directories.
            model: what.
            cached: whether the memory of an asynchronous save is used again.
        """
        self._stage = stage
        self._state = {key: value.detach() for key, value in model.state_dict().items()}
        self._stager = _reused_stager() if cached else None
        self._places = (stage.disk / f"{name}-{n}" for n in itertools.count())

    def save(self) -> float:
        """Seconds until it is durable."""
        place = next(self._places)
        writer = dcp.FileSystemWriter(place, sync_files=True)
        seconds = timed(lambda: dcp.save(self._state, storage_writer=writer))
        self._stage.clear(place)
        return seconds

    def begin(self) -> tuple[float, Any, Path]:
        """Seconds until an asynchronous save lets go; its future, and where it saves."""
        place = next(self._places)
        writer = dcp.FileSystemWriter(place, sync_files=True)
        group = self._stage.group if self._stage.size.ranks > 1 else None
        began = time.perf_counter()
        future = dcp.async_save(
            self._state, storage_writer=writer, process_group=group, async_stager=self._stager
        )
        return time.perf_counter() - began, future, place

    def blocked(self) -> float:
        """Seconds until an asynchronous save lets go."""
        seconds, future, place = self.begin()
        future.result()
        self._stage.clear(place)
        return seconds


def blocked(stage: Stage) -> list[Sample]:
    """How long training waits for an asynchronous save, beside a copy of the same bytes."""
    model = stage.model()
    tensors = [local(parameter) for parameter in model]
    warm = torch.zeros(sum(tensor.numel() for tensor in tensors))
    with stage.trained(stage.disk / "ours", model) as state:

        def ours() -> float:
            state.commit()
            seconds = timed(state.save)
            saver(state).wait()
            _forget(stage, stage.disk / "ours")
            return seconds

        return stage.compete(
            BLOCKED,
            {
                "limit": lambda: timed(lambda: limits.copy(tensors, warm)),
                "ours": ours,
                "dcp": Rival(stage, "async", model).blocked,
                "dcp cached": Rival(stage, "cached", model, cached=True).blocked,
            },
        )


def durable(stage: Stage) -> list[Sample]:
    """How long it takes until a state is safe, beside writing the same bytes."""
    model = stage.model()
    tensors = [local(parameter) for parameter in model]
    raw, whole = (stage.disk / f"{name}-{stage.rank}" for name in ("raw", "torch"))

    def limit() -> float:
        seconds = timed(lambda: limits.write(tensors, raw))
        raw.unlink()
        return seconds

    def plain() -> float:
        seconds = timed(lambda: _torch_save(tensors, whole))
        whole.unlink()
        return seconds

    with stage.trained(stage.disk / "ours", model) as state:
        return stage.compete(
            DURABLE,
            {
                "limit": limit,
                "ours": lambda: _save_now(stage, state),
                "torch.save": plain,
                "dcp": Rival(stage, "dcp", model).save,
            },
        )


def tiny(stage: Stage) -> list[Sample]:
    """How long it takes to save a state of many small tensors."""
    model = stage.tiny_model(_TINY_COUNT)
    with stage.trained(stage.disk / "ours", model) as state:
        return stage.compete(
            TINY,
            {
                "ours": lambda: _save_now(stage, state),
                "dcp": Rival(stage, "tiny", model).save,
            },
        )


def extra_memory(stage: Stage) -> list[Sample]:
    """The most memory that a first asynchronous save needs, in shares of this rank's state."""
    model = stage.model()
    own = sum(local(parameter).nbytes for parameter in model)

    def grown(work: Callable[[], None]) -> float:
        dist.barrier()
        before = _reset_peak()
        work()
        return stage.most((_peak() - before) / own)

    def ours() -> None:
        state.commit()
        state.save()
        saver(state).wait()

    def theirs(*, cached: bool) -> None:
        _, future, place = Rival(stage, "memory", model, cached=cached).begin()
        future.result()
        stage.clear(place)

    with stage.trained(stage.disk / "ours", model) as state:
        samples = [Sample(EXTRA, "ours", [grown(ours)])]
    for name, cached in (("dcp", False), ("dcp cached", True)):
        samples.append(Sample(EXTRA, name, [grown(lambda cached=cached: theirs(cached=cached))]))  # type: ignore[misc]
    return samples


def slowdown(stage: Stage) -> list[Sample]:
    """Mean step time while a save runs in the background, in shares of the one in quiet."""
    model = stage.model()
    weights = torch.randn(512, 512)

    def step() -> None:
        torch.mm(weights, weights)

    def quiet() -> float:
        return timed(lambda: [step() for _ in range(_QUIET_STEPS)]) / _QUIET_STEPS

    def during(is_done: Callable[[], bool]) -> float:
        began, steps = time.perf_counter(), 0
        while not is_done() or not steps:
            step()
            steps += 1
        return (time.perf_counter() - began) / steps

    with stage.trained(stage.disk / "ours", model) as state:

        def ours() -> float:
            usual = quiet()
            state.commit()
            state.save()
            share = during(lambda: saver(state).saved_step == state.step) / usual
            saver(state).wait()
            _forget(stage, stage.disk / "ours")
            return share

        rival = Rival(stage, "beside", model, cached=True)

        def theirs() -> float:
            usual = quiet()
            _, future, place = rival.begin()
            share = during(future.done) / usual
            future.result()
            stage.clear(place)
            return share

        return stage.compete(SLOWDOWN, {"ours": ours, "dcp cached": theirs})


def _reused_stager() -> DefaultStager:
    """Keeps its memory from one save to the next; what needs an accelerator is switched off."""
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )


def _save_now(stage: Stage, state: State) -> float:
    state.commit()
    seconds = timed(lambda: state.save(sync=True))
    _forget(stage, stage.disk / "ours")
    return seconds


def _forget(stage: Stage, where: Path) -> None:
    """Deletes all checkpoints; the term stays."""
    for path in where.glob("step-*") if stage.rank == 0 else ():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    dist.barrier()


def _torch_save(tensors: list[torch.Tensor], path: Path) -> None:
    with open(path, "xb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())


def _reset_peak() -> int:
    """Forgets the most memory that this process had, and gives what it has now, in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the one before has left would not be counted
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)
