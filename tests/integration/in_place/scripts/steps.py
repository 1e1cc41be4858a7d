"""Steps of a small network, as a user would write them; ``--kind`` names what is special."""

from __future__ import annotations

import os
import signal
import time

import torch
from noting import Notes, digest, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic

FEATURES = 8
BATCH = 12
SLOW = 11.0  # seconds that a worker needs to start, once the test says so


class Loader(elastic.DataLoader):
    """Has its process stand still on its way into a round, if the test says so."""

    stands = False

    def enter(self, world: elastic.World) -> None:
        super().enter(world)
        if self.stands:
            os.kill(os.getpid(), signal.SIGSTOP)


class Forgetful(nn.Module):
    """Tells its count, and takes none."""

    count = 0

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, given: int) -> None:
        pass


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    if args.kind == "slow" and notes.has("slow"):
        time.sleep(SLOW)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))
    optim = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.randn(20 * BATCH, FEATURES)
    loader = Loader(data, BATCH, seed=2)
    loader.stands = notes.has("stand") and notes.once("stood")
    forgetful = Forgetful()
    more = {"forgetful": forgetful} if args.kind.startswith("forgets") else {}
    state = elastic.State(model=model, optim=optim, loader=loader, **more)
    state.made = 0
    if args.kind == "saved":
        state.checkpoints(os.path.join(args.folder, "saved"), every="10 steps", keep=2)
    rounds: list[int] = []

    def train(world: elastic.World) -> float:
        notes.say("began", world, step=state.step, made=state.made)
        ddp = DistributedDataParallel(model)
        rounds.append(world.round)
        if len(rounds) == 1 and notes.has("late") and notes.once("hung"):
            time.sleep(3600.0)  # in the first step of this process
        for one in loader.steps():
            for batch in one:
                if state.step == args.steps if args.steps else notes.enough():
                    notes.say("ended", world, step=state.step, digest=digest(model))
                    return digest(model)
                loss = (ddp(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
                optim.zero_grad()
                notes.obey(world, state.step)
                if args.kind == "loud":
                    print("x" * 4000)
                one.backward(loss)
                time.sleep(args.seconds)
                optim.step()
                state.made += 1
                forgetful.count += 1
                state.commit()
                notes.say("step", world, step=state.step)

    elastic.run(train, state, start_over=args.kind == "forgets, anew")
    if args.kind == "exports":
        notes.say("exports")
        while not notes.has("exported"):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
