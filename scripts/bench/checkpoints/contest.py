"""What the ranks of a measurement share: the state, the place, and how contenders take turns."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from elastic_runtime import State
from tests.trained import cut_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

# Tensors are of this many bytes, as those of larger models are.
_TENSOR = 16 << 20


@dataclass(frozen=True)
class Size:
    """What is measured.

    Attributes:
        nbytes: of the whole state.
        ranks: over which it is sharded; one rank holds all of it.
    """

    nbytes: int
    ranks: int


@dataclass(frozen=True)
class Sample:
    """What one contender needed.

    Attributes:
        row: of the table.
        contender: who.
        values: seconds, or what the row says, one for each repetition.
    """

    row: str
    contender: str
    values: list[float]


@dataclass(frozen=True)
class Stage:
    """Where a rank plays its part.

    Attributes:
        size: of the state.
        repeat: how often each contender has its turn.
        disk: a directory for files, common to the ranks.
        memory: the same on tmpfs.
        group: for what DCP does in the background.
    """

    size: Size
    repeat: int
    disk: Path
    memory: Path
    group: dist.ProcessGroup

    @property
    def rank(self) -> int:
        """This one."""
        return dist.get_rank()

    def model(self, fill: float = 1.0) -> nn.ParameterList:
        """A state of the size that was asked for, sharded if there are several ranks."""
        count = max(1, round(self.size.nbytes / _TENSOR))
        rows = self.size.nbytes // count // 4 // 1024 // self.size.ranks
        mesh = dist.init_device_mesh("cpu", (self.size.ranks,)) if self.size.ranks > 1 else None
        return nn.ParameterList([_tensor(rows, fill, mesh) for _ in range(count)])

    def tiny_model(self, count: int) -> nn.ParameterList:
        """As many small tensors, held by all ranks."""
        return nn.ParameterList([torch.full((16, 4), float(i)) for i in range(count)])

    def compete(self, row: str, contenders: Mapping[str, Callable[[], float]]) -> list[Sample]:
        """Lets all contenders have their turns, one after the other (ABAB…).

        Args:
            row: of the table.
            contenders: each does its work and returns what it needed of it, in seconds.

        Returns:
            What the slowest rank needed. The first turn of each is a rehearsal.
        """
        values: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(self.repeat + 1):
            for name, contender in contenders.items():
                dist.barrier()
                values[name].append(self.most(contender()))
        return [Sample(row, name, found[1:]) for name, found in values.items()]

    def most(self, value: float) -> float:
        """The largest of all ranks."""
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found)

    def clear(self, directory: Path) -> None:
        """Deletes what a turn has left, at a moment that nobody measures."""
        dist.barrier()
        if self.rank == 0:
            shutil.rmtree(directory, ignore_errors=True)
        dist.barrier()

    @contextmanager
    def trained(self, where: Path, model: nn.Module) -> Iterator[State]:
        """Ours, saved in a directory that is deleted afterwards."""
        state = State(model=model, generators=False)
        state.checkpoints(where)
        with cut_off(state):
            yield state
        self.clear(where)


def saver(state: State) -> Any:
    """What saves a State that is being trained."""
    return state._saver


def timed(action: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor is in this rank's memory."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _tensor(rows: int, fill: float, mesh: DeviceMesh | None) -> nn.Parameter:
    own = torch.full((max(1, rows), 1024), fill)
    return nn.Parameter(DTensor.from_local(own, mesh, [Shard(0)]) if mesh else own)


@contextmanager
def stages(size: Size, repeat: int, rank: int, disk: Path, memory: Path) -> Iterator[Stage]:
    """Connects the ranks.

    Args:
        size: of the state.
        repeat: how often each contender has its turn.
        rank: this one.
        disk: a directory for files, common to the ranks.
        memory: the same on tmpfs.
    """
    meeting = f"file://{memory / 'meeting'}"
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size.ranks))
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size.ranks)
    try:
        yield Stage(size, repeat, disk, memory, dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()
