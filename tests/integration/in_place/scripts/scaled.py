"""Steps with a gradient scaler, whose gradients are clipped by a norm that all ranks share.

Each step raises the weight by one, so that it tells how often a step was applied. The last rank
dies after it has unscaled its gradients, and the others notice that in the collective after it.
"""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from noting import Notes, digest, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optim = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    state = elastic.State(model=model, optim=optim, scaler=scaler)

    def train(world: elastic.World) -> None:
        ddp = DistributedDataParallel(model, init_sync=False)
        notes.say("began", world, step=state.step)
        while not notes.enough():
            optim.zero_grad()
            scaler.scale(-ddp(torch.ones(1, 1)).sum()).backward()
            scaler.unscale_(optim)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            if world.rank == world.size - 1 and notes.has("die") and notes.once("died"):
                notes.say("died", world, step=state.step)
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(norm)
            scaler.step(optim)
            scaler.update()
            state.commit()
            applied = {"weight": model.weight.item(), "scale": scaler.get_scale()}
            notes.say("step", world, step=state.step, **applied)
            time.sleep(args.seconds)
        notes.say("ended", world, step=state.step, digest=digest(model))

    elastic.run(state)(train)


if __name__ == "__main__":
    main()
