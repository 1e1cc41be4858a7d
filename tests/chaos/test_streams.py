"""Faults over two epochs of shards: each sample of each epoch has counted once, in its step."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.chaos import planned
from tests.chaos.stream_job import Tale, Task

pytestmark = pytest.mark.chaos

_FAULTS = 12
_EPOCHS = 2
_SHARDS = 30
_SAMPLES = 2000


def write_shards(folder: Path, draw: random.Random) -> None:
    """Numbers from 0 on, in files of very different sizes; some may be empty."""
    folder.mkdir()
    cuts = sorted(draw.randint(0, _SAMPLES) for _ in range(_SHARDS - 1))
    for shard, (start, end) in enumerate(zip([0, *cuts], [*cuts, _SAMPLES], strict=True)):
        lines = (json.dumps({"n": number}) + "\n" for number in range(start, end))
        (folder / f"{shard:02}.jsonl").write_text("".join(lines))


def told(steps: list[tuple[int, list[int]]]) -> int:
    """What the job's own number must be after these steps."""
    tale = Tale()
    for _, samples in steps:
        tale.tell(sum(samples))
    return tale.number


def check(task: Task) -> None:
    """Runs the job to its end, and checks what it has noted."""
    task.run(Path(__file__).with_name("stream_job.py"))
    folder = Path(task.folder)
    notes = planned.read_notes(folder)
    steps = planned.committed(notes)
    for epoch in range(task.epochs):
        samples = sorted(n for of, numbers in steps if of == epoch for n in numbers)
        assert samples == list(range(_SAMPLES)), f"epoch {epoch}"
    alone = task.stream(rank=0, world=1)
    expected = planned.one_rank_sequence(alone, task.epochs, lambda batch: batch["n"].tolist())
    assert steps == expected
    # What is saved and sent with the model says the same.
    results = [json.loads(file.read_text()) for file in (folder / "ended").iterdir()]
    assert results
    assert all(result == [len(expected), told(expected)] for result in results), results
    assert len({note["world"] for note in notes}) > 1


@pytest.mark.parametrize("loaders", [0, 1])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "restarts"])
def test_each_sample_counts_once(tmp_path: Path, in_place: bool, loaders: int) -> None:
    seed = planned.drawn_seed()
    draw = random.Random(seed)
    write_shards(tmp_path / "shards", draw)
    # All nodes but one are lost for good.
    nodes = 3 if in_place else 2
    lost = draw.sample(range(_FAULTS // 2, _FAULTS), nodes - 1)
    whole = 0.6 if in_place else 0.0
    task = Task(
        folder=str(tmp_path),
        nodes=nodes,
        epochs=_EPOCHS,
        batch=32,
        seed=seed % 1000,
        step_ms=10.0,
        every="5 steps" if in_place else "2 steps",
        faults=planned.draw_faults(draw, _FAULTS, lost, most=9, whole=whole),
        in_place=in_place,
        shuffle=200,
        loaders=loaders,
    )
    check(task)
