"""A stream that is no entry of the State: refused for training, and right for validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes import elastic_run
from tests.unit.programs import python

if TYPE_CHECKING:
    from pathlib import Path

FORGOTTEN = """
import torch
import elastic_runtime as elastic

model = torch.nn.Linear(1, 1)
optim = torch.optim.SGD(model.parameters(), lr=0.1)
stream = elastic.ShardedStream(range(5), read=lambda shard: [torch.ones(1)] * 30, batch_size=4)

def train(world):
    for batch in stream:
        optim.zero_grad()
        model(batch).sum().backward()
        optim.step()
        state.commit()

state = elastic.State(model=model, optim=optim)
elastic.run(train, state)
"""

VALIDATION = """
import os
import torch
import torch.distributed as dist
import elastic_runtime as elastic

stream = elastic.ShardedStream([0, 1], read=lambda n: range(n * 100, n * 100 + 40), batch_size=8)
state = elastic.State(model=torch.nn.Linear(1, 1))

def train(world):
    # Not over before the other is back: a job that ends just then is another matter.
    while state.step < 30 or (world.size < 2 and state.step < 20_000):
        seen = torch.zeros(200)
        for batch in stream:
            if stream.loss_scale:
                seen[batch] += 1
        dist.all_reduce(seen)
        assert seen.sum() == seen[:40].sum() + seen[100:140].sum() == 80 and seen.max() == 1
        if state.step == 10 and world.round == 1 and world.rank == 1:
            os._exit(1)
        state.commit()
    print(f"{world.size} ranks end in round {world.round}", flush=True)

elastic.run(train, state)
"""


def test_a_stream_that_is_trained_on_and_not_in_the_state_is_named() -> None:
    done = python("-c", FORGOTTEN)
    assert done.returncode != 0
    assert "the ShardedStream is not in the State: no commit moves it on" in done.stderr
    assert "write State(…, stream=stream)" in done.stderr


@pytest.mark.golden("a stream in place: a worker is killed")
def test_a_stream_for_validation_goes_on_in_the_next_world(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(VALIDATION)
    nodes = ("--local-nodes", "2", "--min", "1")
    done = elastic_run(*nodes, "script.py", folder=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "2 ranks end in round " in done.stdout
    assert "2 ranks end in round 1" not in done.stdout
