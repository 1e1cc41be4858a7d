"""Fails after each step in a way that looks like a lost peer; ``--kind`` names how.

``refused``: with words that gloo uses, too. ``reset``: with an error while it handles that of a
connection of its own.
"""

from __future__ import annotations

import torch
from noting import options
from torch import nn

import elastic_runtime as elastic

ARGS = options()


def fail() -> None:
    """What the script does after each step."""
    if ARGS.kind == "refused":
        raise RuntimeError("my data server data01:9000: Connection refused")
    try:
        raise ConnectionResetError(104, "Connection reset by peer")
    except ConnectionResetError:
        _ = {}["batch_size"]


def main() -> None:
    torch.manual_seed(1)
    model = nn.Linear(2, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    state = elastic.State(model=model, optim=optim)

    def train(world: elastic.World) -> None:
        while state.step < 1000:
            optim.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optim.step()
            state.commit()
            fail()

    elastic.run(state)(train)


if __name__ == "__main__":
    main()
