"""What a type checker knows of the public names: it is run on a few lines of a user's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import assert_type

import pytest
import torch
from torch import nn

import elastic_runtime as elastic

ROOT = Path(__file__).parents[3]

USE = """
from typing import assert_type
import elastic_runtime as elastic
from elastic_runtime.worker.run import Trains

class Net:
    pass

class Work(elastic.State):
    net: Net
    epoch: int

work = Work(net=Net())
assert_type(work.net, Net)
assert_type(work.epoch, int)
ckpt = elastic.Checkpointer("runs", work.parts)

def train(world: elastic.World) -> int:
    return world.size

@elastic.run
def later(world: elastic.World) -> float:
    return 0.5

assert_type(elastic.run(train, work, ckpt), int)
assert_type(elastic.run(train, work, checkpointer=ckpt, start_over=True), int)
assert_type(later, Trains[float])
assert_type(later(work, checkpointer=ckpt), float)
assert_type(elastic.run(work, ckpt)(train), int)
"""
WRONG = """
work.epoch = "first"
elastic.run(work, train)
elastic.run(train, ckpt)
later()
later(train)
"""


@pytest.mark.slow("a type checker reads the whole package")
def test_a_type_checker_knows_the_forms_of_run_and_the_objects_of_a_state(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(USE + WRONG)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    checked = subprocess.run(
        [*command, "--no-error-summary", str(script)], cwd=ROOT, capture_output=True, text=True
    )
    wrong = [int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line]
    first = len(USE.splitlines()) + 2
    assert sorted(set(wrong)) == list(range(first, first + 5)), checked.stdout + checked.stderr


class Work(elastic.State):
    """Annotations only."""

    model: nn.Linear
    best: float


def test_annotations_change_nothing_at_run_time() -> None:
    model = nn.Linear(1, 1)
    work = Work(model=model, optim=torch.optim.SGD(model.parameters(), lr=0.1))
    work.best = 0.5
    assert_type(work.best, float)
    assert work.model is model
    assert work.best == 0.5
    assert work.counters_entry().state_dict() == {"best": 0.5}
