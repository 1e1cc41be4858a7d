"""Learns digits as the example does, notes the samples of each step, and hurts itself as planned.

Each life of the job, from one restart to the next, carries out the next fault of the plan.
"""

from __future__ import annotations

import argparse
import json
import os
import uuid
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from elastic_runtime import Checkpointer
from elastic_runtime.examples.digits import Lesson
from tests.chaos import planned


class Task(planned.Task):
    """To learn digits."""

    def lesson(self) -> tuple[Lesson, dict[str, Any]]:
        """What is learned, and the entries of its checkpoints."""
        settings = argparse.Namespace(batch=self.batch, seed=self.seed, step_ms=self.step_ms)
        lesson = Lesson.prepare(settings, torch.device("cpu"))
        tally = Tally(self.epochs, len(lesson.train))
        return lesson, {**lesson.parts, "tally": tally}


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

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        inputs, target = self._data[index]
        return index, inputs, target


def main() -> None:
    """Learns to the end, or to the fault of this life."""
    task = Task.read()
    folder = Path(task.folder)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    lesson, entries = task.lesson()
    parallel, sampler = DistributedDataParallel(lesson.model), lesson.sampler
    loader = DataLoader(
        Numbered(lesson.train), batch_sampler=sampler, num_workers=1, prefetch_factor=4
    )
    ckpt = Checkpointer(folder / "checkpoints", entries, every=task.every, keep=3)
    ckpt.resume()
    due, fault = planned.pending(task, world)
    who = {"round": int(os.environ["ELASTIC_ROUND"]), "rank": rank, "world": world}
    with (folder / "notes" / uuid.uuid4().hex).open("x", buffering=1) as notes:
        while sampler.epoch < task.epochs:
            for numbers, inputs, targets in loader:
                if fault and ckpt.steps == due and rank == fault.rank % world:
                    fault.arm(folder)
                lesson.learn(parallel, inputs, targets)
                samples = numbers.tolist() if sampler.loss_scale else []
                entries["tally"].count(sampler.epoch, samples)
                note = {**who, "step": ckpt.steps, "epoch": sampler.epoch, "samples": samples}
                notes.write(json.dumps(note) + "\n")
                ckpt.step()
    ckpt.save()
    ckpt.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
