"""Trains and saves nothing; a part of its state does not take back what it gave.

``--kind anew``: the job may start over when it has lost everything.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from noting import Notes, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic


class Forgetful:
    """Counts, tells its count, and takes none."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, given: dict[str, Any]) -> None:
        pass


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    model = nn.Linear(4, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    forgetful = Forgetful()
    state = elastic.State(model=model, optim=optim, forgetful=forgetful)

    def train(world: elastic.World) -> None:
        notes.say("began", world, step=state.step)
        ddp = DistributedDataParallel(model)
        while not notes.enough():
            optim.zero_grad()
            ddp(torch.ones(2, 4)).sum().backward()
            time.sleep(args.seconds)
            optim.step()
            forgetful.count += 1
            state.commit()
            notes.say("step", world, step=state.step)

    elastic.run(state, start_over=args.kind == "anew")(train)


if __name__ == "__main__":
    main()
