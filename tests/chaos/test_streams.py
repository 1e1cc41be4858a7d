"""Faults over two epochs of shards: each sample of each epoch has counted once, in its step."""

from __future__ import annotations

import collections
import json
import os
import random
import statistics
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import processes, zygote
from tests.chaos.stream_job import Fault, Tale, Task, read_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.chaos

_FAULTS = 12
_NODES = 3
_EPOCHS = 2
_SHARDS = 30
_SAMPLES = 2000
_JOB = Path(__file__).with_name("stream_job.py")


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"stream-{uuid.uuid4().hex}"
    yield mark
    processes.end(mark)


def draw_faults(draw: random.Random, nodes: Sequence[int], *, whole: float) -> tuple[Fault, ...]:
    """Most kill a worker; some kill its node, so that the world shrinks.

    Not all have ``after`` 1: five rounds in a row that make no step end the job, rightly.

    Args:
        draw: decides.
        nodes: the numbers of those that kill a node.
        whole: how many of the others, about, wait for all living nodes.
    """
    return tuple(
        Fault(
            after=draw.randint(2 if number % 3 == 2 else 1, 9),
            rank=draw.randrange(_NODES),
            delay=draw.uniform(0.0, 0.03),
            node=number in nodes,
            whole=draw.random() < whole,
        )
        for number in range(_FAULTS)
    )


def write_shards(folder: Path, draw: random.Random) -> None:
    """Numbers from 0 on, in files of very different sizes; some may be empty."""
    folder.mkdir()
    cuts = sorted(draw.randint(0, _SAMPLES) for _ in range(_SHARDS - 1))
    for shard, (start, end) in enumerate(zip([0, *cuts], [*cuts, _SAMPLES], strict=True)):
        lines = (json.dumps({"n": number}) + "\n" for number in range(start, end))
        (folder / f"{shard:02}.jsonl").write_text("".join(lines))


def one_rank_sequence(task: Task) -> list[tuple[int, list[int]]]:
    """The epoch and the samples of each step of an undisturbed run with one rank."""
    stream = task.stream(rank=0, world=1)
    steps = []
    while stream.epoch < task.epochs:
        for batch in stream:
            steps.append((stream.epoch, sorted(batch["n"].tolist())))
            stream.commit()
    return steps


def committed(notes: list[dict[str, Any]]) -> list[tuple[int, list[int]]]:
    """The epoch and the samples of each step, as the last round that made it has noted.

    A step that was made again was held by nobody who was left.
    """
    made: dict[int, dict[int, list[dict[str, Any]]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for note in notes:
        made[note["step"]][note["round"]].append(note)
    assert sorted(made) == list(range(len(made)))
    steps = []
    for _, rounds in sorted(made.items()):
        last = rounds[max(rounds)]
        assert sorted(note["rank"] for note in last) == list(range(last[0]["world"])), last
        (epoch,) = {note["epoch"] for note in last}
        steps.append((epoch, sorted(sample for note in last for sample in note["samples"])))
    return steps


def told(steps: list[tuple[int, list[int]]]) -> int:
    """What the job's own number must be after these steps."""
    tale = Tale()
    for _, samples in steps:
        tale.tell(sum(samples))
    return tale.number


def stalls(folder: Path, notes: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """How long each fault kept the job from its next step, in seconds, and what it was."""
    found = []
    for file in sorted((folder / "faults").iterdir(), key=lambda each: int(each.name)):
        fault = json.loads(file.read_text())
        before = max(note["at"] for note in notes if note["round"] == fault["round"])
        after = [note["at"] for note in notes if note["round"] > fault["round"]]
        what = f"{'node' if fault['node'] else 'worker'} of {fault['world']}"
        if after:  # else the job was over before the fault struck
            found.append((what, (min(after) - before) / 1e9))
    return found


def check(task: Task, mark: str, *options: str) -> list[dict[str, Any]]:
    """Runs the job to its end, and checks what it has noted; returns that."""
    folder = Path(task.folder)
    (folder / "task").write_text(task.text())
    for name in ("notes", "faults", "ended"):
        (folder / name).mkdir()
    log = folder / "log"
    with log.open("wb") as out:
        job = zygote.run(
            [
                *(sys.executable, "-m", "elastic_runtime", "--local-nodes", str(task.nodes)),
                *(*options, str(_JOB), str(folder / "task")),
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
    assert len(list((folder / "faults").iterdir())) == _FAULTS, "the job was too short"
    # A killed agent's processes see that it is gone; the others have ended before their agent.
    processes.wait_for(
        lambda: not processes.marked(mark),
        20.0,
        "the end of all processes of the job",
        lambda: "\n".join(f"{pid}: {processes.command(pid)}" for pid in processes.marked(mark)),
    )

    notes = read_notes(folder)
    steps = committed(notes)
    for epoch in range(task.epochs):
        samples = sorted(n for of, numbers in steps if of == epoch for n in numbers)
        assert samples == list(range(_SAMPLES)), f"epoch {epoch}"
    expected = one_rank_sequence(task)
    assert steps == expected
    # What is saved and sent with the model says the same.
    results = [json.loads(file.read_text()) for file in (folder / "ended").iterdir()]
    assert results
    assert all(result == [len(expected), told(expected)] for result in results), results
    _print_stalls(stalls(folder, notes), len(steps), notes)
    return notes


def _print_stalls(found: list[tuple[str, float]], steps: int, notes: list[dict[str, Any]]) -> None:
    rounds = len({note["round"] for note in notes})
    print(f"{steps} steps in {rounds} rounds, worlds {sorted({n['world'] for n in notes})}")
    print(", ".join(f"{what}: {seconds:.2f} s" for what, seconds in found))
    print(f"median stall: {statistics.median(seconds for _, seconds in found):.2f} s")


def drawn_seed() -> int:
    """Of all that a test draws."""
    seed = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"CHAOS_SEED={seed}")  # shown when the test fails; set it to draw the same faults again
    return seed


@pytest.mark.parametrize("loaders", [0, 1])
def test_in_place_each_sample_counts_once(tmp_path: Path, mark: str, loaders: int) -> None:
    seed = drawn_seed()
    draw = random.Random(seed)
    write_shards(tmp_path / "shards", draw)
    nodes = draw.sample(range(_FAULTS // 2, _FAULTS), _NODES - 1)
    faults = draw_faults(draw, nodes, whole=0.6)
    task = Task(
        folder=str(tmp_path),
        in_place=True,
        nodes=_NODES,
        epochs=_EPOCHS,
        batch=32,
        shuffle=200,
        seed=seed % 1000,
        loaders=loaders,
        step_ms=10.0,
        every="5 steps",
        faults=faults,
    )
    notes = check(task, mark, "--min", "1")
    assert len({note["world"] for note in notes}) > 1


@pytest.mark.parametrize("loaders", [0, 1])
def test_with_restarts_each_sample_counts_once(tmp_path: Path, mark: str, loaders: int) -> None:
    seed = drawn_seed()
    draw = random.Random(seed)
    write_shards(tmp_path / "shards", draw)
    # One node is lost for good.
    nodes = [draw.randrange(_FAULTS // 2, _FAULTS)]
    task = Task(
        folder=str(tmp_path),
        in_place=False,
        nodes=2,
        epochs=_EPOCHS,
        batch=32,
        shuffle=200,
        seed=seed % 1000,
        loaders=loaders,
        step_ms=10.0,
        every="2 steps",
        faults=draw_faults(draw, nodes, whole=0.0),
    )
    notes = check(task, mark, "--min", "1")
    assert len({note["world"] for note in notes}) > 1
