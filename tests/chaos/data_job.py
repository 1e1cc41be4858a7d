"""Learns digits as the example does, notes the samples of each step, and kills itself as planned.

Each life of the job, from one restart to the next, carries out the next fault of the plan: some
steps beyond all earlier lives one of the ranks starts a clock, and when it has run down the rank is
gone, wherever it is. That the fault has been carried out is written down before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from elastic_runtime import Checkpointer
from elastic_runtime.examples.digits import Lesson
from tests import processes


@dataclass(frozen=True)
class Fault:
    """One planned fault.

    Attributes:
        after: so many steps beyond the furthest that any life has made.
        rank: which one, modulo the number of ranks.
        delay: from the beginning of the next step, in seconds.
        node: the rank's agent is killed, and with it the whole node; else the rank.
    """

    after: int
    rank: int
    delay: float
    node: bool

    def strike(self) -> None:
        """Kills."""
        pid = os.getpid()
        # A worker is a child of the fork server, and that one of the agent.
        victim = processes.parent(processes.parent(pid)) if self.node else pid
        os.kill(victim, signal.SIGKILL)


@dataclass(frozen=True)
class Task:
    """What the job is to do.

    Attributes:
        folder: for notes, checkpoints and what is known of the faults.
        epochs, batch, seed: as for the example.
        step_ms: the length of a step.
        every: how often to save.
        faults: one for each life; then the job goes on to its end.
    """

    folder: str
    epochs: int
    batch: int
    seed: int
    step_ms: float
    every: str
    faults: tuple[Fault, ...]

    @classmethod
    def read(cls, text: str) -> Task:
        """From what ``text`` makes."""
        fields = json.loads(text)
        return cls(**{**fields, "faults": tuple(Fault(**fault) for fault in fields["faults"])})

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

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


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """All steps that all ranks have noted."""
    notes: list[dict[str, Any]] = []
    for file in (folder / "notes").iterdir():
        whole, _, _ = file.read_text().rpartition("\n")  # a rank may be killed while it writes
        notes += map(json.loads, whole.splitlines())
    return notes


def pending(task: Task) -> tuple[int, Fault | None]:
    """The step at which this life's fault is due, and the fault; the same on all ranks."""
    folder = Path(task.folder)
    furthest = max((note["step"] for note in read_notes(folder)), default=-1)
    known = torch.tensor([furthest, len(list((folder / "faults").iterdir()))])
    dist.broadcast(known, src=0)
    step, done = known.tolist()
    if done == len(task.faults):
        return -1, None
    return step + task.faults[done].after, task.faults[done]


def arm(fault: Fault, folder: Path) -> None:
    """Starts the clock of a fault that belongs to this rank."""
    (folder / f"{len(list(folder.iterdir()))}").touch(exist_ok=False)
    clock = threading.Timer(fault.delay, fault.strike)
    clock.daemon = True
    clock.start()


def main() -> None:
    """Learns to the end, or to the fault of this life."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", type=Path, help="a file with the task")
    task = Task.read(parser.parse_args().task.read_text())
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
    due, fault = pending(task)
    who = {"round": int(os.environ["ELASTIC_ROUND"]), "rank": rank, "world": world}
    with (folder / "notes" / uuid.uuid4().hex).open("x", buffering=1) as notes:
        while sampler.epoch < task.epochs:
            for numbers, inputs, targets in loader:
                if fault and ckpt.steps == due and rank == fault.rank % world:
                    arm(fault, folder / "faults")
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
