"""A small convolutional network that learns handwritten digits, on any number of workers.

::

    python -m elastic_runtime.examples.digits
    torchrun --nproc-per-node 2 -m elastic_runtime.examples.digits
    elastic-run --min 1 --max 4 -m elastic_runtime.examples.digits --dir runs/digits
    elastic-run --min 1 --max 4 -m elastic_runtime.examples.digits --dir runs/digits --in-place

The data comes with scikit-learn: 1,797 real digits of 8 by 8 pixels. Kill a worker or a whole
node while it runs, or let another one join: training goes on, and each digit still counts once an
epoch. Without ``--in-place`` all workers start again from the last checkpoint; with it the
survivors keep their process, their memory and their step. The loop is the same.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

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


def main() -> None:
    """Trains until all epochs are done, going on where an earlier start of the job stopped."""
    args, device = parse_args(), choose_device()
    torch.manual_seed(args.seed)
    samples, test = digits()
    model = network().to(device)
    optim = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = elastic.DataLoader(samples, global_batch_size=args.batch, seed=args.seed)
    state = elastic.State(model=model, optim=optim, loader=loader)
    state.checkpoints(args.dir, every=args.every, keep=3)

    def report() -> None:
        if state.world.rank == 0:
            workers = f"{state.world.size} worker{'s' if state.world.size > 1 else ''}"
            reached = f"accuracy {accuracy(model, test, device):.3f}"
            print(f"epoch {loader.epoch - 1}: step {state.step}, {workers}, {reached}", flush=True)

    state.at("epoch", report)

    def train(world: elastic.World) -> None:
        """Called by ``elastic.run``; in place again whenever the world is another one."""
        ddp = elastic.ddp(model)
        if state.step and world.rank == 0:
            workers = "1 worker" if world.size == 1 else f"{world.size} workers"
            print(f"from step {state.step} on: {workers}, epoch {loader.epoch}", flush=True)
        for step in loader.steps(epochs=args.epochs):
            started = time.monotonic()
            for inputs, targets in step:
                outputs = ddp(inputs.to(device))
                step.backward(nn.functional.cross_entropy(outputs, targets.to(device)))
            # Only for demonstrations, which would otherwise be over before anything happens.
            time.sleep(max(0.0, args.step_ms / 1000 - (time.monotonic() - started)))
            optim.step()
            optim.zero_grad()
            state.commit()

    elastic.run(train, state, in_place=args.in_place)
    if state.world.rank == 0:
        print(f"test accuracy {accuracy(model, test, device):.3f}", flush=True)


if __name__ == "__main__":
    main()
