"""A plain script of the same steps."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from noting import Notes, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastic_runtime.worker.world import World


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Linear(8, 1)
    ddp = DistributedDataParallel(model)
    world = replace(World.of_environment(os.environ), round=int(os.environ["ELASTIC_ROUND"]))
    step = 0
    while not notes.enough():
        step += 1
        ddp(torch.randn(4, 8)).sum().backward()
        time.sleep(args.seconds)
        notes.say("step", world, step=step)


if __name__ == "__main__":
    main()
