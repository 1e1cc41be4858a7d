"""Changes outside of an optimizer, and a fault that finds them: what they count must stay alike.

Each step raises a weight by one, by an optimizer or by hand, so that it tells how often a step
was applied. ``--kind`` says what else there is, and the last rank dies in the collective after it.
"""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from noting import Notes, digest, options
from torch import nn

import elastic_runtime as elastic


class Average(nn.Module):
    """Counts its updates in a buffer, and once more in a weight that no optimizer holds."""

    times: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times", torch.zeros(()))
        self.total = nn.Parameter(torch.zeros(()))

    def update(self) -> None:
        with torch.no_grad():
            self.times += 1
            self.total += 1


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    model = nn.ParameterDict({"weight": torch.zeros(())})
    weight = model["weight"]
    parts: dict[str, object] = {"model": model}
    if args.kind != "manual":
        optim = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ConstantLR(optim, factor=1.0)
        average = Average()
        parts |= {"optim": optim, "schedule": schedule, "average": average}
    state = elastic.State(**parts)
    saver = None
    if args.kind == "late":
        saver = elastic.Checkpointer(os.path.join(args.folder, "saved"), state.parts, every=10)

    def collective(world: elastic.World, *, fatal: bool) -> None:
        if fatal and world.rank == world.size - 1 and notes.has("die") and notes.once("died"):
            notes.say("died", world, step=state.step)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    def by_hand(world: elastic.World) -> None:
        collective(world, fatal=False)
        with torch.no_grad():
            weight.add_(1)
        collective(world, fatal=True)
        state.commit()

    def by_optimizer(world: elastic.World) -> None:
        collective(world, fatal=args.kind == "average")
        # Experts: each rank has gradients of its own, which nobody averages.
        weight.grad = torch.full((), -1.0 - (world.rank if args.kind == "experts" else 0))
        optim.step()
        if args.kind != "average":
            collective(world, fatal=True)
        if args.kind == "late":
            schedule.step()
        state.commit()
        if args.kind == "average":
            average.update()

    def train(world: elastic.World) -> None:
        notes.say("began", world, step=state.step)
        while not notes.enough():
            (by_hand if args.kind == "manual" else by_optimizer)(world)
            applied = {"weight": weight.item()}
            if args.kind != "manual":
                applied |= {"times": average.times.item(), "total": average.total.item()}
                applied |= {"scheduled": schedule.last_epoch}
            notes.say("step", world, step=state.step, **applied)
            time.sleep(args.seconds)
        notes.say("ended", world, step=state.step, digest=digest(model))

    elastic.run(state, saver)(train)


if __name__ == "__main__":
    main()
