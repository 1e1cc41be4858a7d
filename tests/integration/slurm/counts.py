"""Counts steps in place, and saves: what jobs under Slurm run in the tests.

``python counts.py FOLDER STEPS``; a file ``FOLDER/enough`` ends it sooner. Rank 0 writes each step
to ``FOLDER/steps``, and the step that a process begins with to ``FOLDER/begins``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import elastic_runtime as elastic

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(2, 2)
state = elastic.State(model=model, counted=0)
state.checkpoints(folder / "saved", every="1h")


def _note(name: str) -> None:
    with (folder / name).open("a") as file:
        file.write(f"{state.counted} {dist.get_world_size()}\n")


def train(world: elastic.World) -> None:
    """One round: each step costs a small exchange of all ranks."""
    if world.rank == 0:
        _note("begins")
    while state.counted < steps:
        enough = torch.tensor(float((folder / "enough").exists()))
        dist.all_reduce(enough, op=dist.ReduceOp.MAX)
        if enough:
            return
        time.sleep(0.1)
        state.counted += 1
        if world.rank == 0:
            _note("steps")  # before the commit, which may be where the world is left
        state.commit()


elastic.run(train, state)
