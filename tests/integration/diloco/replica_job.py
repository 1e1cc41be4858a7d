"""Trains alone between two syncs, and notes which samples each inner step had.

What a rank is to do out of the ordinary it finds in the folder, as a file named after it and its
process: ``hold`` right before a sync, ``hang``, ``spoil`` its parameters, be ``slow``.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import elastic_runtime as elastic

BATCH = 12


class Numbered(Dataset[tuple[int, torch.Tensor, int]]):
    """Points that say their number."""

    def __init__(self, size: int) -> None:
        self._points = torch.randn(size, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor, int]:
        return number, self._points[number], int(self._points[number].sum() > 0)


class Work:
    """One process of the job."""

    def __init__(self, folder: Path, kind: dict[str, Any], seconds: float) -> None:
        """Makes the models, and what they are trained with.

        Args:
            folder: for notes and orders.
            kind: how it trains; what is missing is as usual.
            seconds: length of an inner step.
        """
        torch.manual_seed(1)
        self.folder, self.seconds, self.every = folder, seconds, kind["sync_every"]
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.replica = copy.deepcopy(self.model)
        self.inner = torch.optim.AdamW(self.replica.parameters(), lr=1e-3)
        self.data: Any = self._data(kind)
        rhythm = {name: kind[name] for name in ("sync_every", "fragments", "delay") if name in kind}
        if kind.get("local"):
            self.state = elastic.State(model=self.model, data=self.data)
            self.diloco: elastic.DiLoCo = elastic.LocalSGD(
                self.state, self.replica, inner=self.inner, **rhythm
            )
        else:
            outer = torch.optim.SGD(self.model.parameters(), 0.7, momentum=0.9, nesterov=True)
            self.state = elastic.State(model=self.model, data=self.data, outer=outer)
            self.diloco = elastic.DiLoCo(
                self.state, self.replica, inner=self.inner, outer=outer, **rhythm
            )
        self.state.made = 0
        if kind.get("saves"):
            self.state.checkpoints(folder / "saved", every="100ms", keep=2)

    def _data(self, kind: dict[str, Any]) -> Any:
        if kind.get("stream"):
            pattern = str(self.folder / "*.jsonl")
            return elastic.ShardedStream(pattern, global_batch_size=BATCH, decode=read)
        return elastic.DataLoader(Numbered(kind.get("size", BATCH * 300)), BATCH, seed=1)

    def note(self, what: str, **fields: Any) -> None:
        """Notes what has happened, in a line that outlives this process."""
        line = json.dumps({"what": what, "pid": os.getpid(), "at": time.monotonic(), **fields})
        with (self.folder / "notes").open("a") as notes:
            notes.write(f"{line}\n")

    def ordered(self, what: str) -> bool:
        """Whether this process was told to do something."""
        return (self.folder / f"{what}-{os.getpid()}").exists()

    def train(self, world: elastic.World) -> None:
        """One world."""
        at = self.diloco.inner_steps
        self.note("enter", **self._where(), round=world.round, rank=world.rank, size=world.size,
                  at_inner=at)  # fmt: skip
        for step in self.data.steps(epochs=1):
            numbers: list[int] = []
            for these, points, labels in step:
                numbers += these.tolist()
                step.backward(nn.functional.cross_entropy(self.replica(points), labels))
            self._end_step(numbers)
        self.diloco.sync()
        self.note("end", **self._where(), sum=self._sum(), finite=self._finite())

    def _end_step(self, numbers: list[int]) -> None:
        self.inner.step()
        self.inner.zero_grad()
        time.sleep(self.seconds * (6 if self.ordered("slow") else 1))
        if self.ordered("hang"):
            time.sleep(3600)
        if self.ordered("spoil"):
            (self.folder / f"spoil-{os.getpid()}").unlink()
            with torch.no_grad():
                next(self.replica.parameters()).fill_(torch.nan)
        self.state.made += 1
        self.note("inner", numbers=numbers, **self._where())
        if self.diloco.inner_steps == self.every - 1 and self.ordered("hold"):
            self.note("holds")
            with elastic.busy("holding"):
                time.sleep(3600)
        if self.diloco.step():
            self.note("sync", **self._where(), finite=self._finite())

    def _where(self) -> dict[str, Any]:
        return {"step": self.state.step, "made": self.state.made, "inner": self.diloco.inner_steps}

    def _sum(self) -> float:
        return sum(float(each.detach().double().sum()) for each in self.model.parameters())

    def _finite(self) -> bool:
        tensors = (*self.model.parameters(), *self.replica.parameters())
        return all(bool(torch.isfinite(each).all()) for each in tensors)


def read(line: bytes) -> tuple[int, torch.Tensor, int]:
    """A sample of a shard."""
    number = int(line)
    return number, torch.full((8,), number / 1000), number % 2


def main() -> None:
    """Trains for an epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = Work(args.folder, json.loads(args.kind), args.seconds)
    elastic.run(work.train, work.state)


if __name__ == "__main__":
    main()
