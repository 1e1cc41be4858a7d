"""Two optimizers with a collective between them, and a fault that hits there."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from noting import Notes, digest, options
from torch import nn

import elastic_runtime as elastic


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    nets = nn.ModuleDict({"maker": nn.Linear(3, 4), "judge": nn.Linear(4, 1)})
    maker = torch.optim.Adam(nets["maker"].parameters(), lr=0.01)
    judge = torch.optim.Adam(nets["judge"].parameters(), lr=0.01)
    state = elastic.State(shadow=args.kind == "shadow", nets=nets, maker=maker, judge=judge)
    saver = None
    if args.kind == "saved":
        saver = elastic.Checkpointer(os.path.join(args.folder, "saved"), state.parts, every=10)

    def reduced(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)

    def train(world: elastic.World) -> None:
        notes.say("began", world, step=state.step)
        while not notes.enough():
            for optimizer in (judge, maker):
                optimizer.zero_grad()
                nets["judge"](nets["maker"](torch.randn(5, 3))).square().mean().backward()
                # The last rank dies when the others have begun a step that they cannot end.
                if optimizer is maker and world.rank == world.size - 1 and notes.has("die"):
                    if notes.once("died"):
                        notes.say("died", world, step=state.step)
                        os.kill(os.getpid(), signal.SIGKILL)
                reduced(optimizer)
                optimizer.step()
            time.sleep(args.seconds)
            state.commit()
            notes.say("step", world, step=state.step)
        notes.say("ended", world, step=state.step, digest=digest(nets))

    elastic.run(state, saver)(train)


if __name__ == "__main__":
    main()
