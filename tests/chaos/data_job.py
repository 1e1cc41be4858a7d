"""Learns digits as the example does, notes the samples of each step, and hurts itself as planned.

Each life of the job, from one restart to the next, carries out the next fault of the plan.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import elastic_runtime as elastic
from elastic_runtime.examples.digits import digits, network
from tests.chaos import planned


class Task(planned.Task):
    """To learn digits."""

    def learner(self) -> tuple[elastic.State, elastic.DataLoader, Tally]:
        """What is trained, what it reads, and how often each sample has counted."""
        torch.manual_seed(self.seed)
        samples, _ = digits()
        model = network()
        optim = torch.optim.Adam(model.parameters(), lr=2e-3)
        tally = Tally(self.epochs, len(samples))
        loader = elastic.DataLoader(
            Numbered(samples),
            global_batch_size=self.batch,
            seed=self.seed,
            num_workers=1,
            prefetch_factor=4,
        )
        return elastic.State(model=model, optim=optim, loader=loader, tally=tally), loader, tally


class Tally(nn.Module):
    """How often each sample has counted in each epoch; saved with the model."""

    times: torch.Tensor

    def __init__(self, epochs: int, size: int) -> None:
        super().__init__()
        self.register_buffer("times", torch.zeros(epochs, size, dtype=torch.int64))

    def count(self, epoch: int, samples: list[int]) -> None:
        """Adds the samples of all ranks."""
        mine = torch.zeros_like(self.times)
        mine[epoch, samples] += 1
        dist.all_reduce(mine)
        self.times += mine


class Numbered(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """A data set whose samples say their number."""

    def __init__(self, data: Dataset[tuple[torch.Tensor, ...]]) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]  # a TensorDataset

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        inputs, target = self._data[index]
        return index, inputs, target


def main() -> None:
    """Learns to the end, or to the fault of this life."""
    task = Task.read()
    folder = Path(task.folder)
    dist.init_process_group("gloo")
    state, loader, tally = task.learner()
    state.checkpoints(folder / "checkpoints", every=task.every, keep=3)
    with (
        state.resumed() as world,
        (folder / "notes" / uuid.uuid4().hex).open("x", buffering=1) as notes,
    ):
        due, fault = planned.pending(task, world.size)
        number = int(os.environ["ELASTIC_ROUND"])
        who = {"round": number, "rank": world.rank, "world": world.size}
        ddp = DistributedDataParallel(state.model)
        for step in loader.steps(epochs=task.epochs):
            for numbers, inputs, targets in step:
                if fault and state.step == due and world.rank == fault.rank % world.size:
                    fault.arm(folder)
                step.backward(nn.functional.cross_entropy(ddp(inputs), targets))
                samples = numbers.tolist() if step.weight else []
            time.sleep(task.step_ms / 1000)
            state.optim.step()
            state.optim.zero_grad()
            tally.count(step.epoch, samples)
            note = {**who, "step": state.step, "epoch": step.epoch, "samples": samples}
            notes.write(json.dumps(note) + "\n")
            state.commit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
