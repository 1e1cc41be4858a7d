"""How ranks that are asked to leave a round come together before the next sync is due.

Each agent tells its workers that the round is to be left, at about the same moment, and so at
different inner steps. Each rank then casts its *vote*, the inner step that it has reached, and
waits for the others'. The largest is where all meet: those that are behind train up to there, so
that no sample is left out. A rank whose exchange is under way, or that waits at a sync already,
votes for that sync and waits for no answer, as none can be further.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from elastic_runtime.worker.peers import Peers


class Vote:
    """The vote of one round, in which each rank has one voice, and casts it once."""

    def __init__(self, peers: Peers) -> None:
        """Casts nothing yet.

        Args:
            peers: all ranks, on a group that is used for nothing else.
        """
        self._group = peers.group
        self._furthest = torch.zeros(1, dtype=torch.int64, device="cpu")
        self._work: dist.Work | None = None
        self.cast_at: int | None = None

    def cast(self, position: int) -> None:
        """Says how far this rank is, unless it has said so before; waits for nobody."""
        if self.cast_at is not None:
            return
        self.cast_at = position
        self._furthest[0] = position
        if self._group is not None:
            self._work = dist.all_reduce(
                self._furthest, op=dist.ReduceOp.MAX, group=self._group, async_op=True
            )

    def result(self) -> int:
        """How far the furthest rank was when it voted; waits until all have.

        Raises:
            RuntimeError: a rank was lost on the way.
        """
        if self._work is not None:
            self._work.wait()
            self._work = None
        return int(self._furthest)

    def close(self) -> None:
        """Ends a round that all ranks leave together: no voice is left without an answer.

        A collective that still runs when its group ends makes gloo wait for ever now and then.
        """
        with suppress(RuntimeError):  # a rank is lost at the same time
            self.cast(0)
            self.result()
