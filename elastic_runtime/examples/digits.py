"""A small convolutional network that learns handwritten digits, on any number of workers.

::

    python -m elastic_runtime.examples.digits
    torchrun --nproc-per-node 2 -m elastic_runtime.examples.digits
    elastic-run --min 1 --max 4 -m elastic_runtime.examples.digits --dir runs/digits
    elastic-run --min 1 --max 4 -m elastic_runtime.examples.digits --dir runs/digits --in-place

The data comes with scikit-learn: 1,797 real digits of 8 by 8 pixels. Kill a worker or a whole
node while it runs, or let another one join: training goes on, and each digit still counts once an
epoch. Without ``--in-place`` all workers start again from the last checkpoint; with it the
survivors keep their process, their memory and their step.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import elastic_runtime as elastic

TEST_SAMPLES = 360


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="learn handwritten digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, over all workers")
    parser.add_argument("--dir", default="runs/digits", help="where the checkpoints are")
    parser.add_argument("--every", default="10 steps", help="how often to save: '10 steps', '30s'")
    parser.add_argument("--step-ms", type=float, default=0.0, help="take at least so long a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-place", action="store_true", help="survivors of a fault go on")
    return parser.parse_args()


def digits() -> tuple[TensorDataset, TensorDataset]:
    """The training and the test set: images of shape (1, 8, 8) from 0 to 1, and their digits."""
    images, targets = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(targets)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(2024))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return TensorDataset(inputs[train], labels[train]), TensorDataset(inputs[test], labels[test])


def network() -> nn.Module:
    """Two convolutions and two linear layers, from (n, 1, 8, 8) to (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def choose_device() -> torch.device:
    """The device of this worker: a GPU of its own, if there are any."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    return torch.device("cuda")


def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """The share of the samples that the model names rightly."""
    inputs, targets = (tensor.to(device) for tensor in data.tensors)
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == targets).float().mean())


@dataclass(frozen=True)
class Lesson:
    """What is learned, from what, and how far: the same in both forms."""

    args: argparse.Namespace
    device: torch.device
    train: TensorDataset
    test: TensorDataset
    model: nn.Module
    optimizer: torch.optim.Optimizer
    sampler: elastic.ElasticBatchSampler

    @classmethod
    def prepare(cls, args: argparse.Namespace, device: torch.device) -> Lesson:
        """Everything at its beginning, the same on every rank."""
        torch.manual_seed(args.seed)
        train, test = digits()
        model = network().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        sampler = elastic.ElasticBatchSampler(train, args.batch, seed=args.seed)
        return cls(args, device, train, test, model, optimizer, sampler)

    @property
    def parts(self) -> dict[str, Any]:
        """What must not be lost, by name."""
        return {"model": self.model, "optimizer": self.optimizer, "sampler": self.sampler}

    def learn(self, parallel: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """One step; ``parallel`` is the model, wrapped for the present ranks."""
        started = time.monotonic()
        outputs = parallel(inputs.to(self.device))
        loss = nn.functional.cross_entropy(outputs, targets.to(self.device))
        self.optimizer.zero_grad()
        (loss * self.sampler.loss_scale).backward()
        # Only for demonstrations, which would otherwise be over before anything happens.
        time.sleep(max(0.0, self.args.step_ms / 1000 - (time.monotonic() - started)))
        self.optimizer.step()

    def report(self, epoch: int, step: int, workers: int) -> None:
        """Says how good the model is after an epoch."""
        reached = accuracy(self.model, self.test, self.device)
        print(f"epoch {epoch}: step {step}, {workers} workers, accuracy {reached:.3f}", flush=True)

    def conclude(self) -> None:
        """Says how good the model is at the end."""
        print(f"test accuracy {accuracy(self.model, self.test, self.device):.3f}", flush=True)


def train_from_checkpoints(args: argparse.Namespace) -> None:
    """Trains until all epochs are done, continuing where an earlier start of the job stopped."""
    device = choose_device()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    lesson = Lesson.prepare(args, device)
    sampler = lesson.sampler
    parallel = DistributedDataParallel(lesson.model) if dist.is_initialized() else lesson.model
    loader = DataLoader(lesson.train, batch_sampler=sampler)
    ckpt = elastic.Checkpointer(args.dir, lesson.parts, every=args.every, keep=3)
    first = not dist.is_initialized() or dist.get_rank() == 0
    if ckpt.resume() and first:
        print(f"resumed at step {ckpt.steps}, epoch {sampler.epoch}", flush=True)

    while sampler.epoch < args.epochs:
        epoch = sampler.epoch
        for inputs, targets in loader:
            lesson.learn(parallel, inputs, targets)
            ckpt.step()
        if first:
            lesson.report(epoch, ckpt.steps, dist.get_world_size() if dist.is_initialized() else 1)

    ckpt.save()
    if first:
        lesson.conclude()
    ckpt.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def train_in_place(args: argparse.Namespace) -> None:
    """The same; ranks that outlive a fault go on from the step that they have in memory."""
    lesson = Lesson.prepare(args, choose_device())
    sampler = lesson.sampler
    loader = elastic.loader(lesson.train, sampler)
    state = elastic.State(**lesson.parts)
    ckpt = elastic.Checkpointer(args.dir, lesson.parts, every=args.every, keep=3)

    def train(world: elastic.World) -> elastic.World:
        """Called by ``elastic.run``, and again whenever the world is another one."""
        parallel = DistributedDataParallel(lesson.model, init_sync=False)
        if state.step and world.rank == 0:
            workers = "1 worker" if world.size == 1 else f"{world.size} workers"
            print(f"from step {state.step} on: {workers}, epoch {sampler.epoch}", flush=True)
        while sampler.epoch < args.epochs:
            epoch = sampler.epoch
            for inputs, targets in loader:
                lesson.learn(parallel, inputs, targets)
                state.commit()
            if world.rank == 0:
                lesson.report(epoch, state.step, world.size)
        ckpt.save()
        return world

    world = elastic.run(train, state, checkpointer=ckpt)
    if world.rank == 0:
        lesson.conclude()


def main() -> None:
    """Trains in one form or the other."""
    args = parse_args()
    if args.in_place:
        train_in_place(args)
    else:
        train_from_checkpoints(args)


if __name__ == "__main__":
    main()
