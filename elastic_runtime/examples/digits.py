"""A small convolutional network that learns handwritten digits, on any number of workers.

::

    python -m elastic_runtime.examples.digits
    torchrun --nproc-per-node 2 -m elastic_runtime.examples.digits
    elastic-run --min 1 --max 4 -m elastic_runtime.examples.digits --dir runs/digits

The data comes with scikit-learn: 1,797 real digits of 8 by 8 pixels. Kill a worker or a whole
node while it runs, or let another one join: training goes on from the last checkpoint, and each
digit still counts once an epoch.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from elastic_runtime import Checkpointer
from elastic_runtime.data.sampler import ElasticBatchSampler

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


def connect() -> torch.device:
    """Joins the other workers, if there are any, and picks the device of this one."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if cuda else "gloo")
    return torch.device("cuda" if cuda else "cpu")


def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """The share of the samples that the model names rightly."""
    inputs, targets = (tensor.to(device) for tensor in data.tensors)
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == targets).float().mean())


def main() -> None:
    """Trains until all epochs are done, wherever an earlier life of the job has stopped."""
    args = parse_args()
    device = connect()
    torch.manual_seed(args.seed)
    train, test = digits()
    model = network().to(device)
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    sampler = ElasticBatchSampler(len(train), args.batch, seed=args.seed)
    loader = DataLoader(train, batch_sampler=sampler)

    state = {"model": model, "optimizer": optimizer, "sampler": sampler}
    ckpt = Checkpointer(args.dir, state, every=args.every, keep=3)
    first = not dist.is_initialized() or dist.get_rank() == 0
    if ckpt.resume() and first:
        print(f"resumed at step {ckpt.steps}, epoch {sampler.epoch}", flush=True)

    while sampler.epoch < args.epochs:
        epoch = sampler.epoch
        for inputs, targets in loader:
            started = time.monotonic()
            outputs = parallel(inputs.to(device))
            loss = nn.functional.cross_entropy(outputs, targets.to(device))
            optimizer.zero_grad()
            (loss * sampler.loss_scale).backward()
            optimizer.step()
            # Only for demonstrations, which would otherwise be over before anything happens.
            time.sleep(max(0.0, args.step_ms / 1000 - (time.monotonic() - started)))
            ckpt.step()
        if first:
            world = dist.get_world_size() if dist.is_initialized() else 1
            reached = accuracy(model, test, device)
            print(
                f"epoch {epoch}: step {ckpt.steps}, {world} workers, accuracy {reached:.3f}",
                flush=True,
            )

    ckpt.save()
    if first:
        print(f"test accuracy {accuracy(model, test, device):.3f}", flush=True)
    ckpt.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
