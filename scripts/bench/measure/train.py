"""A plain DDP script, as people write them for torchrun: the benchmark's job.

Rank 0 saves every ten steps; after a restart all ranks load what was saved. It knows nothing of
what launches it.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import SAVE_EVERY, StepLog, batches, hold_ballast, network, train_one


def main() -> None:
    """Trains until ``--steps`` are done or somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True, help="directory for the logs of steps")
    parser.add_argument("--checkpoint", required=True, help="file that the state is saved to")
    parser.add_argument("--steps", type=int, default=1 << 30)
    args = parser.parse_args()
    hold_ballast()

    dist.init_process_group("gloo")
    model, optim = network()
    step = -1
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optim.load_state_dict(saved["optim"])
        step = saved["step"]
    ddp = DistributedDataParallel(model)
    log = StepLog(args.notes, first_step=step + 1)
    loader = batches()
    for step in range(log.first_step, args.steps):
        train_one(ddp, optim, next(loader))
        log.completed(step)
        if step % SAVE_EVERY == SAVE_EVERY - 1 and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optim": optim.state_dict(), "step": step}
            torch.save(state, args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
