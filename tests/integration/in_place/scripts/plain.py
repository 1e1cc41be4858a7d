"""A plain script of the same steps; with ``--kind saved`` it has a State, and is restarted."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from noting import Notes, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic
from elastic_runtime.worker.world import World


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Linear(8, 1)
    ddp = DistributedDataParallel(model)
    world = replace(World.of_environment(os.environ), round=int(os.environ["ELASTIC_ROUND"]))
    state = elastic.State(model=model)
    state.checkpoints(os.path.join(args.folder, "saved"), every="1000 steps")
    step = 0
    with state.resumed() if args.kind == "saved" else nullcontext():
        while not notes.enough():
            step += 1
            ddp(torch.randn(4, 8)).sum().backward()
            time.sleep(args.seconds)
            notes.say("step", world, step=step)
            if args.kind == "saved":
                state.commit()


if __name__ == "__main__":
    main()
