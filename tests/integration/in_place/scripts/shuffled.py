"""Samples in the order of torch's own ``DataLoader``; with ``--kind plain`` there is no State."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from noting import Notes, options
from torch import nn
from torch.utils.data import DataLoader

import elastic_runtime as elastic
from elastic_runtime.worker.world import World


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    model = nn.Linear(8, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.randn(64, 8), batch_size=4, shuffle=True)
    state = elastic.State(model=model, optim=optim)

    def train(world: World, ddp: Any) -> None:
        step = 0
        while True:
            for batch in loader:
                if notes.enough():
                    return
                ddp(batch).sum().backward()
                optim.step()
                optim.zero_grad()
                step += 1
                time.sleep(args.seconds)
                notes.say("step", world, step=step)
                if args.kind == "state":
                    state.commit()

    if args.kind == "state":
        elastic.run(lambda world: train(world, elastic.ddp(model)), state)
        return
    dist.init_process_group("gloo")
    world = replace(World.of_environment(os.environ), round=int(os.environ["ELASTIC_ROUND"]))
    train(world, nn.parallel.DistributedDataParallel(model))


if __name__ == "__main__":
    main()
