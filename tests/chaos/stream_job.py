"""Learns numbers from shards, notes the samples of each step, and kills itself as planned.

Trains in place, or is restarted from its checkpoints.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic
from tests.chaos import planned

if TYPE_CHECKING:
    from elastic_runtime.data.steps import TrainingStep

# Seconds of a step while a fault waits for ranks to come back.
_WAITING_S = 0.5
_TALE = 1 << 31


@dataclass(frozen=True)
class Task(planned.Task):
    """To learn from shards.

    Attributes:
        in_place: whether survivors of a fault go on without a restart.
        shuffle, loaders: of the stream.
    """

    in_place: bool
    shuffle: int
    loaders: int

    def stream(self, **options: Any) -> elastic.ShardedStream:
        """The samples, for this rank or another.

        Args:
            **options: of the stream, beside those that the task has.
        """
        return elastic.ShardedStream(
            f"{self.folder}/shards/*.jsonl",
            global_batch_size=self.batch,
            shuffle_buffer=self.shuffle,
            seed=self.seed,
            **options,
        )


class Tale:
    """A number that depends on all samples of all steps, in order; saved with the model."""

    def __init__(self) -> None:
        self.number = 0

    def tell(self, samples: int) -> None:
        """Takes one step in.

        Args:
            samples: the sum of its samples.
        """
        self.number = (31 * self.number + samples + 1) % _TALE

    def state_dict(self) -> dict[str, int]:
        """The number."""
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Takes over what was saved."""
        self.number = state["number"]


class Learner:
    """Learns, step by step."""

    def __init__(self, task: Task) -> None:
        self._task, self._folder = task, Path(task.folder)
        torch.manual_seed(task.seed)
        self.model = nn.Linear(1, 1)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.stream = task.stream(num_workers=task.loaders)
        self.tale = Tale()
        # A line is one write.
        self._notes = (self._folder / "notes" / uuid.uuid4().hex).open("x", buffering=1)

    def learn(self) -> None:
        """Learns to the end, or to the fault of this life."""
        task = self._task
        state = elastic.State(
            model=self.model, optim=self.optim, stream=self.stream, tale=self.tale
        )
        state.checkpoints(self._folder / "checkpoints", every=task.every, keep=3)

        def train(world: elastic.World) -> None:
            due, fault = planned.pending(task, world.size)
            seconds = _WAITING_S if fault and due == -1 else task.step_ms / 1000
            who = {"round": world.round, "rank": world.rank, "world": world.size}
            ddp = DistributedDataParallel(self.model, init_sync=False)
            for step in self.stream.steps(epochs=task.epochs):
                for batch in step:
                    if fault and state.step == due and world.rank == fault.rank % world.size:
                        fault.arm(self._folder)
                    # A rank without a share gets a sample of another rank, with no weight.
                    samples = batch["n"].tolist() if step.weight else []
                    note = {**who, "step": state.step, "epoch": step.epoch, "samples": samples}
                    # Before the ranks meet: so no rank commits a step that another has not noted.
                    # The commit may end the round, and this function with it.
                    self._notes.write(json.dumps(note) + "\n")
                    time.sleep(seconds)
                    self._learn(ddp, step, batch["n"], sum(samples))
                state.commit()

        elastic.run(train, state, in_place=task.in_place)
        self._end(state.step)

    def _learn(
        self, ddp: nn.Module, step: TrainingStep, numbers: torch.Tensor, counted: int
    ) -> None:
        inputs = numbers.float()[:, None] / 1000
        self.optim.zero_grad()
        step.backward((ddp(inputs) - 2 * inputs).square().mean())
        total = torch.tensor(counted)
        dist.all_reduce(total)
        self.optim.step()
        self.tale.tell(int(total))

    def _end(self, steps: int) -> None:
        """Writes down what came of it.

        Args:
            steps: how many were committed.
        """
        self._notes.close()
        result = json.dumps([steps, self.tale.number])
        (self._folder / "ended" / uuid.uuid4().hex).write_text(result)


if __name__ == "__main__":
    Learner(Task.read()).learn()
