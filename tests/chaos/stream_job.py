"""Learns numbers from shards, notes the samples of each step, and kills itself as planned.

Trains in place, or as a plain loop that restarts from its checkpoint.
"""

from __future__ import annotations

import json
import os
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
    from collections.abc import Iterator

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
            batch_size=self.batch,
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

    @property
    def parts(self) -> dict[str, Any]:
        """What is saved."""
        learned = {"model": self.model, "optim": self.optim}
        return {**learned, "stream": self.stream, "tale": self.tale}

    def steps(self, who: dict[str, int], before: int) -> Iterator[int]:
        """Makes steps, up to the commit of each, from here to the end.

        Args:
            who: the round, the rank and the world.
            before: how many steps are committed.
        """
        task, stream = self._task, self.stream
        due, fault = planned.pending(task, who["world"])
        seconds = _WAITING_S if fault and due == -1 else task.step_ms / 1000
        ddp = DistributedDataParallel(self.model, init_sync=False)
        step = before
        while stream.epoch < task.epochs:
            for batch in stream:
                if fault and step == due and who["rank"] == fault.rank % who["world"]:
                    fault.arm(self._folder)
                # A rank without a share gets a sample of another rank, with no weight.
                samples = batch["n"].tolist() if stream.loss_scale else []
                note = {**who, "step": step, "epoch": stream.epoch, "samples": samples}
                # Before the ranks meet: so no rank commits a step that another has not noted. The
                # commit may end the round, and this function with it.
                self._notes.write(json.dumps(note) + "\n")
                time.sleep(seconds)
                self._learn(ddp, batch["n"], sum(samples))
                step += 1
                yield step

    def end(self, steps: int) -> None:
        """Writes down what came of it.

        Args:
            steps: how many were committed.
        """
        self._notes.close()
        result = json.dumps([steps, self.tale.number])
        (self._folder / "ended" / uuid.uuid4().hex).write_text(result)

    def _learn(self, ddp: nn.Module, numbers: torch.Tensor, counted: int) -> None:
        inputs = numbers.float()[:, None] / 1000
        loss = (ddp(inputs) - 2 * inputs).square().mean() * self.stream.loss_scale
        self.optim.zero_grad()
        loss.backward()
        total = torch.tensor(counted)
        dist.all_reduce(total)
        self.optim.step()
        self.tale.tell(int(total))


def learn_in_place(learner: Learner, ckpt: elastic.Checkpointer) -> int:
    """Learns to the end; returns how many steps that took.

    Args:
        learner: who learns.
        ckpt: saves.
    """
    state = elastic.State(**learner.parts)

    def train(world: elastic.World) -> None:
        who = {"round": world.round, "rank": world.rank, "world": world.size}
        for _ in learner.steps(who, state.step):
            state.commit()
        ckpt.save()

    elastic.run(train, state, ckpt)
    return state.step


def learn_with_restarts(learner: Learner, ckpt: elastic.Checkpointer) -> int:
    """Learns to the end, or to the fault of this life; returns how many steps there are.

    Args:
        learner: who learns.
        ckpt: saves.
    """
    dist.init_process_group("gloo")
    ckpt.resume()
    who = {
        "round": int(os.environ["ELASTIC_ROUND"]),
        "rank": dist.get_rank(),
        "world": dist.get_world_size(),
    }
    for _ in learner.steps(who, ckpt.steps):
        ckpt.step()
    ckpt.save()
    ckpt.close()
    dist.destroy_process_group()
    return ckpt.steps


def main() -> None:
    """Learns as the task says."""
    task = Task.read()
    learner = Learner(task)
    ckpt = elastic.Checkpointer(
        Path(task.folder) / "checkpoints", learner.parts, every=task.every, keep=3
    )
    learn = learn_in_place if task.in_place else learn_with_restarts
    learner.end(learn(learner, ckpt))


if __name__ == "__main__":
    main()
