"""A stream that is trained in pieces, and one for a validation, while a worker is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes import elastic_run

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import os
import torch
import torch.distributed as dist
import elastic_runtime as elastic

def read(shard):
    return (torch.tensor([float(n)]) for n in range(shard * 100, shard * 100 + 40))

model = torch.nn.Linear(1, 1)
optim = torch.optim.SGD(model.parameters(), lr=1e-9)
stream = elastic.ShardedStream(
    range(5), read=read, global_batch_size=7, at_once=2, shuffle_buffer=50, num_workers=1
)
held = elastic.ShardedStream([0, 1], read=read, global_batch_size=8, num_workers=1)
state = elastic.State(model=model, optim=optim, stream=stream, total=0.0)

def evaluate():
    seen = torch.zeros(200)
    for batch in held:
        seen[batch.flatten().long()] += 1
    dist.all_reduce(seen)
    assert seen.sum() == seen[:40].sum() + seen[100:140].sum() == 80 and seen.max() == 1

state.at("10 steps", evaluate)

def train(world):
    ddp = elastic.ddp(model)
    # Not over before the other is back: a job that ends just then is another matter.
    for step in stream.steps():
        state.total += step.total(lambda piece: piece.sum())
        for piece in step:
            step.backward(ddp(piece).mean())
            if step.number == 15 and world.round == 1 and world.rank == 1:
                os._exit(1)
        optim.step()
        optim.zero_grad()
        last = step.last_of_epoch and world.size == 2 and world.round > 1
        state.commit()
        if last or step.epoch > 500:
            break
    assert state.total == stream.epoch * sum(sum(range(n, n + 40)) for n in range(0, 500, 100))
    print(f"{world.size} ranks end in round {world.round}", flush=True)

elastic.run(train, state)
"""


@pytest.mark.golden("a stream in place: a worker is killed")
def test_streams_go_on_in_the_next_world(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    nodes = ("--local-nodes", "2", "--min", "1")
    done = elastic_run(*nodes, "script.py", folder=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-4000:]
    assert '"samples": 7, "workers": 2, "at_once": 2, "pieces": 2' in done.stderr
    assert "2 ranks end in round " in done.stdout
    assert "2 ranks end in round 1" not in done.stdout
