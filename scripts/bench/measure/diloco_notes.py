"""What the scripts of the benchmark of slow networks share, and what it reads of them.

A script notes a line for each inner step, for the beginning and the end of each outer step, and for
inner steps that it had to give up. A line outlives the process that has written it.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

BATCH = 32
LABELS = 10

READY, INNER, BEGIN, OUTER, GIVEN_UP = "ready", "inner", "begin", "outer", "given-up"


@dataclass(frozen=True, slots=True)
class Noted:
    """One line: what has happened at a moment (monotonic, in nanoseconds), and a number of it."""

    at: int
    what: str
    number: int


class Notes:
    """The notes of this process."""

    def __init__(self, folder: str) -> None:
        """Begins a file of its own.

        Args:
            folder: where those of all processes are.
        """
        path = Path(folder, f"{os.getpid()}.notes")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, what: str, number: int = 0) -> None:
        """Notes that something happens now."""
        os.write(self._file, f"{time.monotonic_ns()} {what} {number}\n".encode())


def read(folder: Path) -> dict[int, list[Noted]]:
    """What each process has noted, by its id."""
    found = {}
    for path in folder.glob("*.notes"):
        lines = [line.split() for line in path.read_text().splitlines(keepends=False)]
        found[int(path.stem)] = [Noted(int(at), what, int(n)) for at, what, n in lines]
    return found


def network(width: int) -> nn.Sequential:
    """A perceptron with three layers, the same in all processes."""
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, LABELS),
    )


def inner_step(model: nn.Module, optim: torch.optim.Optimizer, width: int, pause: float) -> None:
    """One step on made data that takes a little over ``pause`` seconds."""
    points, labels = torch.randn(BATCH, width), torch.randint(LABELS, (BATCH,))
    optim.zero_grad()
    nn.functional.cross_entropy(model(points), labels).backward()
    optim.step()
    time.sleep(pause)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a killed process has cost the one that survived.

    Attributes:
        stall: the longest time without an inner step, in seconds, less that of a usual one.
        given_up: inner steps of its own that do not count.
    """

    stall: float
    given_up: int


def outer_seconds(notes: list[Noted]) -> list[float]:
    """How much longer inner steps took in which an outer one was made, in seconds."""
    usual, outer = _steps(notes)
    middle = sorted(usual)[len(usual) // 2] if usual else 0.0
    return [seconds - middle for seconds in outer]


def cost(notes: list[Noted], killed: int, until: int) -> Cost:
    """What the death of another process has cost.

    Args:
        notes: of the process that survived.
        killed: when the other one was killed, in nanoseconds.
        until: what happened after that belongs to something else.
    """
    usual, _ = _steps([one for one in notes if one.at < killed])
    middle = sorted(usual)[len(usual) // 2] if usual else 0.0
    moments = [one.at for one in notes if one.what == INNER and one.at <= until]
    pairs = itertools.pairwise(moments)
    longest = max(((b - a) / 1e9 for a, b in pairs if b > killed), default=0.0)
    given_up = sum(one.number for one in notes if one.what == GIVEN_UP and killed < one.at <= until)
    return Cost(max(0.0, longest - middle), given_up)


def _steps(notes: list[Noted]) -> tuple[list[float], list[float]]:
    """The lengths of inner steps, in seconds: of plain ones, and of those with an outer one."""
    plain: list[float] = []
    with_outer: list[float] = []
    before, outer = 0, False
    for one in notes:
        outer = outer or one.what in (BEGIN, OUTER)
        if one.what == INNER:
            if before:
                (with_outer if outer else plain).append((one.at - before) / 1e9)
            before, outer = one.at, False
    return plain, with_outer
