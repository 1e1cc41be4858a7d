"""The job of the chaos tests: its state is right only if each step was done once, in order.

The state is a chain of numbers, in which every step depends on all steps before it. Each worker
notes its steps in a file of its own, and prints one line that nobody else prints.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import elastic_runtime as elastic

_MODULUS = (1 << 31) - 1


class Chain(nn.Module):
    """Holds the chain; a module, so that a checkpoint takes it as it takes a model."""

    value: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(1, dtype=torch.int64))

    def advance(self, step: int) -> None:
        """Takes one step in."""
        self.value.mul_(31).add_(step + 1).remainder_(_MODULUS)

    @classmethod
    def after(cls, steps: int) -> int:
        """What the chain must be after so many steps."""
        chain = cls()
        for step in range(steps):
            chain.advance(step)
        return int(chain.value)


def main() -> None:
    """Advances the chain, all ranks together, until told to end, at the latest at ``--steps``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--until", type=Path, required=True, help="ends when this file is there")
    parser.add_argument("--seconds", type=float, default=0.01, help="length of a step")
    args = parser.parse_args()

    name = uuid.uuid4().hex
    print(f"worker {name} speaks", flush=True)
    chain = Chain()
    state = elastic.State(chain=chain)
    state.checkpoints(args.checkpoint, every=10, keep=3)

    def train(world: elastic.World) -> None:
        with (args.notes / name).open("x", buffering=1) as notes:
            notes.write(f"{world.round} {world.rank} {world.size} {os.getpid()}\n")
            ends = False
            while state.step < args.steps and not ends:
                votes = torch.tensor([1, int(args.until.exists())])
                dist.all_reduce(votes)
                assert int(votes[0]) == world.size
                ends = bool(votes[1])
                chain.advance(state.step)
                time.sleep(args.seconds)
                notes.write(f"{time.monotonic_ns()} {state.step}\n")
                state.commit()

    elastic.run(train, state, in_place=False)


if __name__ == "__main__":
    main()
