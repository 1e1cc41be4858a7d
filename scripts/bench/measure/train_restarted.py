"""The benchmark's job from checkpoints: it leaves at a step boundary when it is asked to."""

from __future__ import annotations

import argparse

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import SAVE_EVERY, StepLog, batches, hold_ballast, network, train_one

import elastic_runtime as elastic


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
    state = elastic.State(model=model, optim=optim)
    state.checkpoints(args.checkpoint, every=SAVE_EVERY, keep=3)
    with state.resumed():
        ddp = DistributedDataParallel(model)
        log = StepLog(args.notes, first_step=state.step)
        loader = batches()
        while state.step < args.steps:
            train_one(ddp, optim, next(loader))
            log.completed(state.step)
            state.commit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
