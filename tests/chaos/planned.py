"""Jobs that hurt themselves as planned, and the samples that their steps must have had.

Each round carries out the next fault of the plan: some steps beyond all earlier rounds one of the
ranks starts a clock, and when it has run down the rank is gone, wherever it is. That it will be is
written down before.
"""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tests import processes, zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    Steps = list[tuple[int, list[int]]]  # the epoch and the samples of each

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """One planned fault.

    Attributes:
        after: so many steps beyond the furthest that any round has made.
        rank: which one, modulo the number of ranks.
        delay: from the beginning of that step, in seconds.
        node: the rank's agent is killed, and with it the whole node; else the rank.
        whole: not before all nodes that live take part again.
    """

    after: int
    rank: int
    delay: float
    node: bool
    whole: bool

    def strike(self) -> None:
        """Kills."""
        pid = os.getpid()
        # A worker is a child of the fork server, and that one of the agent.
        victim = processes.parent(processes.parent(pid)) if self.node else pid
        os.kill(victim, signal.SIGKILL)

    def arm(self, folder: Path) -> None:
        """Starts the clock; this rank is the one."""
        faults = folder / "faults"
        (faults / f"{len(list(faults.iterdir()))}").touch(exist_ok=False)
        clock = threading.Timer(self.delay, self.strike)
        clock.daemon = True
        clock.start()


@dataclass(frozen=True)
class Task:
    """What a job is to do.

    Attributes:
        folder: for notes, checkpoints and what is known of the faults.
        nodes: how many begin, each with one rank.
        epochs, batch, seed: of the samples.
        step_ms: the length of a step.
        every: how often to save.
        faults: one for each round, as far as they go; then the job goes on to its end.
    """

    folder: str
    nodes: int
    epochs: int
    batch: int
    seed: int
    step_ms: float
    every: str
    faults: tuple[Fault, ...]

    @classmethod
    def read(cls) -> Self:
        """From the file that the command line names."""
        fields = json.loads(Path(sys.argv[1]).read_text())
        return cls(**{**fields, "faults": tuple(Fault(**fault) for fault in fields["faults"])})

    def run(self, job: Path, *options: str) -> str:
        """Runs a script with this task to its end; returns what it has said."""
        folder, mark = Path(self.folder), f"planned-{uuid.uuid4().hex}"
        (folder / "task").write_text(json.dumps(asdict(self)))
        for name in ("notes", "faults", "ended"):
            (folder / name).mkdir()
        log = folder / "log"
        nodes = ("--local-nodes", str(self.nodes), "--min", "1", *options)
        environ = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT), processes.MARKER: mark}
        try:
            with log.open("wb") as out:
                done = zygote.run(
                    [sys.executable, "-m", "elastic_runtime", *nodes, str(job), f"{folder}/task"],
                    env={**os.environ, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    timeout=100,
                )
            said = log.read_text()
            assert done.returncode == 0, said[-6000:]
            assert len(list((folder / "faults").iterdir())) == len(self.faults), "it was too short"
            # A killed agent's processes see that it is gone; the others have ended before theirs.
            processes.wait_for(
                lambda: not processes.marked(mark),
                20.0,
                "the end of all processes of the job",
                lambda: str([processes.command(pid) for pid in processes.marked(mark)]),
            )
        finally:
            processes.end(mark)
        return said


def drawn_seed() -> int:
    """Of all that a test draws."""
    seed = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"CHAOS_SEED={seed}")  # shown when the test fails; set it to draw the same faults again
    return seed


def draw_faults(
    draw: random.Random, count: int, nodes: Sequence[int], *, most: int, whole: float = 0.0
) -> tuple[Fault, ...]:
    """Most kill a worker; some kill its node, so that the world shrinks.

    A fault one step beyond the furthest may strike before that step is made, and five rounds in a
    row that make none end the job, rightly: so every third one leaves its round time for a step.

    Args:
        draw: decides.
        count: how many.
        nodes: the numbers of those that kill a node.
        most: steps beyond the furthest.
        whole: how many of the others, about, wait for all living nodes.
    """
    return tuple(
        Fault(
            after=draw.randint(2 if number % 3 == 2 else 1, most),
            rank=draw.randrange(3),
            delay=draw.uniform(0.0, 0.03),
            node=number in nodes,
            whole=draw.random() < whole,
        )
        for number in range(count)
    )


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """All steps that all ranks have noted."""
    notes: list[dict[str, Any]] = []
    for file in (folder / "notes").iterdir():
        whole, _, _ = file.read_text().rpartition("\n")  # a rank may be killed while it writes
        notes += map(json.loads, whole.splitlines())
    return notes


def pending(task: Task, world: int) -> tuple[int, Fault | None]:
    """The step at which this round's fault is due, and the fault; the same on all ranks.

    The step is -1 if there is a fault which waits for a larger world.

    Args:
        task: with the plan.
        world: how many ranks there are.
    """
    folder = Path(task.folder)
    furthest = max((note["step"] for note in read_notes(folder)), default=-1)
    known = torch.tensor([furthest, len(list((folder / "faults").iterdir()))])
    dist.broadcast(known, src=0)
    step, done = known.tolist()
    if done == len(task.faults):
        return -1, None
    fault = task.faults[done]
    living = task.nodes - sum(earlier.node for earlier in task.faults[:done])
    return -1 if fault.whole and world < living else step + fault.after, fault


def one_rank_sequence(source: Any, epochs: int, numbers: Callable[[Any], list[int]]) -> Steps:
    """What the steps of an undisturbed run with one rank are.

    Args:
        source: the loader, as that rank has it.
        epochs: how many.
        numbers: of the samples of a piece.
    """
    steps: Steps = []
    for step in source.steps(epochs=epochs):
        found = [number for piece in step for number in numbers(piece)]
        steps.append((step.epoch, sorted(found)))
    return steps


def committed(notes: list[dict[str, Any]]) -> Steps:
    """The steps, as the last round that made each has noted it.

    A step that was made again was neither saved nor held by anybody who was left.
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
