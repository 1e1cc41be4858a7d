"""The benchmark's job with a ``Checkpointer``: it leaves at a step boundary when it is asked to."""

from __future__ import annotations

import argparse

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import SAVE_EVERY, StepLog, batches, hold_ballast, network, train_one

from elastic_runtime import Checkpointer


def main() -> None:
    """Trains until ``--steps`` are done or somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True, help="directory for the logs of steps")
    parser.add_argument("--checkpoint", required=True, help="directory of the checkpoints")
    parser.add_argument("--steps", type=int, default=1 << 30)
    args = parser.parse_args()
    hold_ballast()

    dist.init_process_group("gloo")
    model, optim = network()
    entries = {"model": model, "optim": optim}
    ckpt = Checkpointer(args.checkpoint, entries, every=SAVE_EVERY, keep=3)
    step = ckpt.resume()
    ddp = DistributedDataParallel(model)
    log = StepLog(args.notes, first_step=step)
    loader = batches()
    for step in range(log.first_step, args.steps):
        train_one(ddp, optim, next(loader))
        log.completed(step)
        ckpt.step()
    ckpt.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
