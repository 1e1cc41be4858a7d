"""What is seen of a job in place while it is hurt: histories, checkpoints, sizes of processes."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.fleet import Lines
from tests.model.history import Committed, Entered, Kept, Left, Process, Strike, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.model.history import Record

_CHECKPOINT = re.compile(r"step-(\d+)\.term-(\d+)")
_MANIFEST = "MANIFEST.json"


@dataclass(frozen=True, slots=True)
class Size:
    """What a process takes: memory of its own in KiB, descriptors, threads."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Size:
        """That of a process now."""
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(int(fields["RssAnon"].split()[0]), descriptors, int(fields["Threads"]))


class Histories:
    """What all processes of a job have noted so far.

    Attributes:
        records: what they did.
        strikes: what they did to themselves because they were told to.
        processes: by name.
        rounds: the records of each round.

    Args:
        directory: of the files that they write.
    """

    def __init__(self, directory: Path) -> None:
        self.records: list[Record] = []
        self.strikes: list[Strike] = []
        self.processes: dict[str, Process] = {}
        self.rounds: dict[int, list[Record]] = defaultdict(list)
        self._directory = directory
        self._lines: dict[Path, Lines] = {}

    def read(self) -> None:
        """Takes in what is new."""
        for path in self._directory.iterdir():
            for line in self._lines.setdefault(path, Lines(path)).new():
                said = parse(path.name, line)
                if isinstance(said, Process):
                    self.processes[said.name] = said
                elif isinstance(said, Strike):
                    self.strikes.append(said)
                elif said is not None:
                    self.records.append(said)
                    self.rounds[said.round].append(said)

    @property
    def round(self) -> int:
        """The newest round in which anybody has begun to train."""
        return max(self.rounds, default=0)

    @property
    def step(self) -> int:
        """The furthest step that anybody has committed in the newest round."""
        here = (one for one in self.rounds[self.round] if isinstance(one, Entered | Committed))
        return max((one.step for one in here), default=0)

    @property
    def steps_here(self) -> int:
        """How many steps were committed in the newest round."""
        here = self.rounds[self.round]
        return len({one.step for one in here if isinstance(one, Committed)})

    @property
    def worlds(self) -> list[int]:
        """The size of the world as each rank of the newest round knows it."""
        return [one.world for one in self.rounds[self.round] if isinstance(one, Entered)]

    def left(self, number: int) -> bool:
        """Whether anybody has left this round."""
        return any(isinstance(one, Left) for one in self.rounds[number])

    def seats(self) -> dict[str, Process]:
        """By the marks of their nodes, the processes of the newest round in rank order."""
        entered = [one for one in self.rounds[self.round] if isinstance(one, Entered)]
        ranked = [self.processes[one.process] for one in sorted(entered, key=lambda e: e.rank)]
        return {one.mark: one for one in ranked}

    def of(self, marks: Iterable[str]) -> list[Process]:
        """The processes of these nodes, dead or alive."""
        wanted = set(marks)
        return [one for one in self.processes.values() if one.mark in wanted]


class Checkpoints:
    """Which whole checkpoints there were when; whatever they are called by the time.

    Args:
        directory: of the checkpoints.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[tuple[int, int], Kept] = {}

    @property
    def kept(self) -> list[Kept]:
        """All that were ever seen, the oldest first."""
        return sorted(self._seen.values())

    @property
    def newest(self) -> Kept | None:
        """The newest one that is there."""
        return max((one for one in self._seen.values() if not one.gone), default=None)

    def look(self) -> None:
        """Takes in what there is now."""
        now = time.monotonic_ns()
        there = {}
        for path in self._directory.iterdir():
            found = _CHECKPOINT.search(path.name)
            # What is being deleted does not count any more, whatever is left of it.
            if found and not path.name.startswith("pruned.") and (path / _MANIFEST).exists():
                there[int(found[2]), int(found[1])] = path
        for which in there:
            # One that was being renamed may have been missed at the last look.
            self._seen[which] = replace(self._seen.get(which, Kept(*which, now)), gone=0)
        for which, one in self._seen.items():
            if which not in there and not one.gone:
                self._seen[which] = replace(one, gone=now)

    def unfinished(self) -> list[str]:
        """Saves that have no manifest: under way, or given up."""
        found = [path for path in self._directory.iterdir() if _CHECKPOINT.fullmatch(path.name)]
        return [path.name for path in found if not (path / _MANIFEST).exists()]
