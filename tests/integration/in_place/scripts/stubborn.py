"""A loop that takes every error of a step for one of a bad sample, and one error of its own."""

from __future__ import annotations

import time

import torch
from noting import Notes, digest, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    state = elastic.State(model=model, optim=optim)

    def one_step(ddp: nn.Module) -> None:
        optim.zero_grad()
        ddp(torch.randn(3, 4)).square().mean().backward()
        time.sleep(args.seconds)
        optim.step()
        state.commit()

    def train(world: elastic.World) -> None:
        ddp = DistributedDataParallel(model)
        while True:
            if notes.has("bad") and world.rank == 1 and notes.once("raised"):
                raise LookupError("sample 17 is bad")
            try:
                if notes.enough():
                    break
                notes.obey(world, state.step)
                one_step(ddp)
            except Exception as error:
                notes.say("swallowed", world, error=type(error).__name__)
                continue
            notes.say("step", world, step=state.step)
        notes.say("ended", world, step=state.step, digest=digest(model))

    elastic.run(train, state)


if __name__ == "__main__":
    main()
