"""Hands tests out to the processes of pytest-xdist, by pieces.

A piece is a file; what shares something that exists only once is one piece; a single long test is a
piece of its own. The longest folders come first, so that no process is left alone with a long test
at the end. What runs many processes of its own runs in half of the processes, rounded up: more jobs
of several nodes at once would starve each other until something is too late.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xdist.workermanage import WorkerController

# What takes longest comes first; a folder that is not listed comes before all of these.
ORDER = ("images", "cluster", "chaos", "partitions", "integration", "model", "unit")
# The images are built once, and for the cluster as well.
TOGETHER = {"cluster": "images", "images": "images"}
# A test of these is long, and shares nothing with its neighbours.
ONE_BY_ONE = ("chaos", "partitions", "model")
# Jobs of several nodes, each of many processes.
HEAVY = tuple(
    f"tests/{folder}/"
    for folder in (
        "chaos",
        "partitions",
        "integration/accelerate",
        "integration/hosts",
        "integration/in_place",
        "integration/lightning",
        "integration/slurm",
        "integration/snapshots",
        "integration/torchtitan",
        "integration/transformers",
    )
)


class Pieces(LoadScopeScheduling):  # type: ignore[misc]
    """The next piece goes to the next process that is free, unless too many heavy ones run."""

    def _split_scope(self, nodeid: str) -> str:
        folder = top_folder(nodeid)
        path = nodeid.split("::")[0]
        return nodeid if folder in ONE_BY_ONE else TOGETHER.get(folder, path)

    def schedule(self) -> None:
        """As xdist does, but also a process that comes later gets a second piece: it begins a test
        only when it knows the next one, and would wait for ever."""
        later = self.collection is not None
        super().schedule()
        for node in self.nodes if later else ():
            self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """As xdist does, but what is done is not handed out again: whoever gets nothing else would
        never say that it has ended. Nor is the test in which the process ended: one that hangs
        would hang in each further process."""
        work = self.assigned_work[node]
        left = ((tests, test) for tests in work.values() for test in tests if not tests[test])
        tests, ended_in = next(left, ({}, None))
        if ended_in is not None:
            tests[ended_in] = True
        for piece in work.keys() - _unfinished(work):
            del work[piece]
        super().remove_node(node)
        return ended_in

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:  # else it is about to say which tests there are
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        pieces = (work for other, work in self.assigned_work.items() if other is not node)
        heavy = sum(any(map(_is_heavy, _unfinished(work))) for work in pieces)
        piece = next_piece(self.workqueue, heavy, len(self.nodes))
        self.workqueue.move_to_end(piece, last=False)
        # If the process has just ended, that is the next that is heard of it.
        with contextlib.suppress(OSError):
            super()._assign_work_unit(node)


def next_piece(waiting: Iterable[str], heavy: int, processes: int) -> str:
    """What a process runs next.

    Args:
        waiting: all pieces that nobody has yet, at least one, in order.
        heavy: how many other processes have a heavy one.
        processes: how many there are.
    """
    pieces = list(waiting)
    if 2 * heavy < processes:
        return pieces[0]
    return next((piece for piece in pieces if not _is_heavy(piece)), pieces[0])


def top_folder(nodeid: str) -> str:
    """The folder of ``tests/FOLDER/…``."""
    return nodeid.split("/", 2)[1]


def _is_heavy(piece: str) -> bool:
    return piece.startswith(HEAVY)


def _unfinished(work: Mapping[str, Mapping[str, bool]]) -> list[str]:
    """Of the pieces that a process was given, each with what it has done of it."""
    return [piece for piece, tests in work.items() if not all(tests.values())]
