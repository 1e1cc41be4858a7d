"""Twenty faults over three epochs of digits: each sample of each epoch has counted once."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import elastic_runtime as elastic
from tests.chaos import planned
from tests.chaos.data_job import Task

pytestmark = pytest.mark.chaos

_FAULTS = 20
_NODES = 3


def test_no_sample_of_a_committed_step_is_missing_or_repeated(tmp_path: Path) -> None:
    seed = planned.drawn_seed()
    draw = random.Random(seed)
    nodes = draw.sample(range(_FAULTS // 2, _FAULTS), _NODES - 1)
    faults = planned.draw_faults(draw, _FAULTS, nodes, most=3)
    task = Task(str(tmp_path), _NODES, 3, 32, seed % 1000, 10.0, "2 steps", faults)
    said = task.run(Path(__file__).with_name("data_job.py"), "--preload", "sklearn.datasets")
    assert len(set(re.findall(r'"round.left".*"round": (\d+)', said))) >= _FAULTS

    notes = planned.read_notes(tmp_path)
    worlds = {note["world"] for note in notes}
    assert (min(worlds), max(worlds)) == (1, _NODES)
    state, _, tally = task.learner()
    steps = planned.committed(notes)
    size = tally.times.shape[1]
    alone = elastic.DataLoader(range(size), task.batch, seed=task.seed)
    expected = planned.one_rank_sequence(alone, task.epochs, lambda piece: piece.tolist())
    assert steps == expected
    # What the model was saved with says the same.
    assert elastic.load(tmp_path / "checkpoints", state) == len(steps)
    assert (tally.times == 1).all()
