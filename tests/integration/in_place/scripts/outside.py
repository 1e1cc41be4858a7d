"""Steps with more than one optimizer's step in them, and a fault in the midst of one.

Each step raises a weight by one, by an optimizer or by hand, so that it tells how often a step
was applied. ``--kind`` says what else there is, and where the last rank dies: in a collective.
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
    kind, notes = args.kind, Notes(args.folder)
    model = nn.ParameterDict({"weight": torch.zeros(())})
    weight = model["weight"]
    parts: dict[str, object] = {"model": model}
    if kind != "manual":
        optim = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ConstantLR(optim, factor=1.0)
        average = Average()
        parts |= {"optim": optim, "schedule": schedule, "average": average}
    if kind == "scaled":
        scaler = torch.amp.GradScaler("cpu", enabled=True)
        parts["scaler"] = scaler
    other = nn.ParameterDict({"weight": torch.zeros(())})
    second = torch.optim.SGD(other.parameters(), lr=1.0)
    if kind == "two":
        parts |= {"other": other, "second": second}
    state = elastic.State(**parts)
    if kind == "once, saved":
        state.checkpoints(os.path.join(args.folder, "saved"), every=10)

    def collective(world: elastic.World, *, fatal: bool) -> None:
        if fatal and world.rank == world.size - 1 and notes.has("die") and notes.once("died"):
            notes.say("died", world, step=state.step)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    def by_hand(world: elastic.World) -> None:
        with torch.no_grad():
            weight.add_(1)
        collective(world, fatal=True)

    def by_a_scaler(world: elastic.World) -> None:
        scaler.scale(-weight).backward()
        scaler.unscale_(optim)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        collective(world, fatal=True)
        scaler.step(optim)
        scaler.update()
        optim.zero_grad()

    def by_two(world: elastic.World) -> None:
        for optimizer, held in ((optim, weight), (second, other["weight"])):
            held.grad = torch.full((), -1.0)
            # It dies when the others have begun a step that they cannot end.
            collective(world, fatal=optimizer is second)
            optimizer.step()

    def by_optimizer(world: elastic.World) -> None:
        # Experts: each rank has gradients of its own, which nobody averages.
        weight.grad = torch.full((), -1.0 - (world.rank if kind == "experts" else 0))
        optim.step()
        if kind != "average":
            collective(world, fatal=True)
        if kind == "late":
            schedule.step()

    def by_optimizer_and_once_a_collective(world: elastic.World) -> None:
        now = torch.tensor(float(notes.has("die")))
        dist.all_reduce(now)
        weight.grad = torch.full((), -1.0)
        optim.step()
        if now:
            collective(world, fatal=True)

    def train(world: elastic.World) -> None:
        steps = {
            "manual": by_hand,
            "scaled": by_a_scaler,
            "two": by_two,
            "once": by_optimizer_and_once_a_collective,
            "once, saved": by_optimizer_and_once_a_collective,
        }
        step = steps.get(kind, by_optimizer)
        notes.say("began", world, step=state.step)
        while not notes.enough():
            collective(world, fatal=kind == "average")
            step(world)
            state.commit()
            if kind == "average":
                average.update()
            applied = {"weight": weight.item(), "other": other["weight"].item()}
            if kind == "scaled":
                applied["scale"] = scaler.get_scale()
            if kind != "manual":
                applied |= {"times": average.times.item(), "total": average.total.item()}
                applied |= {"scheduled": schedule.last_epoch}
            notes.say("step", world, step=state.step, **applied)
            time.sleep(args.seconds)
        notes.say("ended", world, step=state.step, digest=digest(model))

    elastic.run(train, state)


if __name__ == "__main__":
    main()
