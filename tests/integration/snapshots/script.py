"""A job whose state after each step is known, that takes snapshots and can be held still.

Usage: ``script.py KIND FOLDER EVERY``; KIND is ``ddp``, ``fsdp`` or ``in_place``. It saves all
EVERY steps, trains until there is a file FOLDER/enough, and waits before a step for as long as
there is a file FOLDER/hold.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import elastic_runtime as elastic

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
SAVE_EVERY, SNAPSHOT_EVERY = int(sys.argv[3]), 4


def make() -> tuple[Any, Any]:
    """A model and its optimizer, as they are before the first step."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Linear(13, 5))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def advance(model: Any, optim: Any) -> None:
    """One step, which is the same on every rank of any world."""
    optim.zero_grad()
    model(torch.ones(2, 7)).square().sum().backward()
    optim.step()


def check(model: Any, optim: Any, steps: int) -> None:
    """Fails unless the state is exactly that after so many steps, but for rounding."""
    expected, its = make()
    for _ in range(steps):
        advance(expected, its)
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        value = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(value, theirs)
        if steps:
            kept = optim.state[mine]["momentum_buffer"]
            kept = kept.full_tensor() if isinstance(kept, DTensor) else kept
            torch.testing.assert_close(kept, its.state[theirs]["momentum_buffer"])


def note(word: str, step: int) -> None:
    """Says how far this process is: word, round, rank, pid, step, its agent's memory."""
    round_, rank = os.environ["ELASTIC_ROUND"], dist.get_rank()
    memory = json.loads(os.environ["ELASTIC_SNAPSHOTS"] or '{"directory": "-"}')
    key = Path(memory["directory"], "key")
    with (FOLDER / "secrets").open("a") as file:
        file.write(f"{key.read_text() if key.exists() else '-'}\n")
    with (FOLDER / "environ").open("ab") as file:
        file.write(Path("/proc/self/environ").read_bytes() + repr(os.environ).encode())
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{word} {round_} {rank} {os.getpid()} {step} {memory['directory']}\n")


def pause(step: int) -> bool:
    """A step's time; False if there shall be no further step."""
    time.sleep(0.03)
    held = False
    while True:
        # One rank must not wait for the file while the others wait for that rank.
        files = [FOLDER / "hold", FOLDER / "enough"]
        votes = torch.tensor([int(file.exists()) for file in files])
        dist.all_reduce(votes)
        if not votes[0]:
            return not votes[1]
        if not held:
            note("held", step)
        held = True
        time.sleep(0.02)


def main() -> None:
    """Trains in place, or with restarts."""
    model, optim = make()
    if KIND == "fsdp":
        dist.init_process_group("gloo")
        fully_shard(model)
        optim = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    state = elastic.State(model=model, optim=optim)
    state.checkpoints(FOLDER / "runs", every=SAVE_EVERY, snapshots=SNAPSHOT_EVERY)

    def train(world: elastic.World) -> None:
        wrapped = elastic.ddp(model) if KIND == "ddp" else model
        check(model, optim, state.step)
        note("began", state.step)
        while pause(state.step):
            advance(wrapped, optim)
            state.commit()
        check(model, optim, state.step)

    elastic.run(train, state, in_place=KIND == "in_place")


if __name__ == "__main__":
    main()
