"""Twenty faults over three epochs of digits: each sample of each epoch has counted once."""

from __future__ import annotations

import collections
import os
import random
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime import Checkpointer, ElasticBatchSampler
from tests import processes, zygote
from tests.chaos.data_job import Fault, Task, read_notes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.chaos

_FAULTS = 20
_NODES = 3
_EPOCHS = 3
_JOB = Path(__file__).with_name("data_job.py")


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"data-{uuid.uuid4().hex}"
    yield mark
    processes.end(mark)


def draw_faults(draw: random.Random) -> tuple[Fault, ...]:
    """Most kill a worker; two kill its node, so that the world shrinks.

    A fault one step beyond the furthest may strike before that step is made, and five rounds in a
    row that make none end the job, rightly: so every third one leaves its life time for a step.
    """
    nodes = draw.sample(range(_FAULTS // 2, _FAULTS), _NODES - 1)
    return tuple(
        Fault(
            after=draw.randint(2 if number % 3 == 2 else 1, 3),
            rank=draw.randrange(_NODES),
            delay=draw.uniform(0.0, 0.03),
            node=number in nodes,
        )
        for number in range(_FAULTS)
    )


def one_rank_sequence(task: Task, size: int) -> list[tuple[int, list[int]]]:
    """The epoch and the samples of each step of an undisturbed run with one rank."""
    sampler = ElasticBatchSampler(size, task.batch, seed=task.seed, rank=0, world=1)
    steps = []
    while sampler.epoch < task.epochs:
        for batch in sampler:
            steps.append((sampler.epoch, sorted(batch)))
            sampler.commit()
    return steps


def committed(notes: list[dict[str, Any]]) -> list[tuple[int, list[int]]]:
    """The epoch and the samples of each step, as the last round that made it has noted.

    A step that was made again had not been saved.
    """
    made: dict[int, dict[int, list[dict[str, Any]]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for note in notes:
        made[note["step"]][note["round"]].append(note)
    steps = []
    for _, rounds in sorted(made.items()):
        last = rounds[max(rounds)]
        assert {note["rank"] for note in last} == set(range(last[0]["world"])), last
        (epoch,) = {note["epoch"] for note in last}
        steps.append((epoch, sorted(sample for note in last for sample in note["samples"])))
    return steps


def test_no_sample_of_a_committed_step_is_missing_or_repeated(tmp_path: Path, mark: str) -> None:
    seed = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"CHAOS_SEED={seed}")  # shown when the test fails; set it to draw the same faults again
    faults = draw_faults(random.Random(seed))
    task = Task(str(tmp_path), _EPOCHS, 32, seed % 1000, 10.0, "2 steps", faults)
    (tmp_path / "task").write_text(task.text())
    for folder in ("notes", "faults"):
        (tmp_path / folder).mkdir()
    log = tmp_path / "log"
    with log.open("wb") as out:
        job = zygote.run(
            [
                *(sys.executable, "-m", "elastic_runtime", "--local-nodes", str(_NODES)),
                *("--min", "1", "--preload", "sklearn.datasets"),
                *(str(_JOB), str(tmp_path / "task")),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(_JOB.parents[2]),
                processes.MARKER: mark,
            },
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=100,
        )
    assert job.returncode == 0, log.read_text()[-6000:]
    assert len(list((tmp_path / "faults").iterdir())) == _FAULTS, "the job was too short"
    assert len(set(re.findall(r'"round.left".*"round": (\d+)', log.read_text()))) >= _FAULTS

    notes = read_notes(tmp_path)
    worlds = {note["world"] for note in notes}
    assert (min(worlds), max(worlds)) == (1, _NODES)
    lesson, entries = task.lesson()
    steps = committed(notes)
    assert steps == one_rank_sequence(task, len(lesson.train))
    # What the model was saved with says the same.
    ckpt = Checkpointer(tmp_path / "checkpoints", entries)
    assert ckpt.resume() == len(steps)
    ckpt.close()
    assert (entries["tally"].times == 1).all()
