"""What a rank has noted of the training for itself: metrics, callbacks, whether to stop.

Ranks may differ in these: a metric that is not averaged over ranks is one of each rank. So they
are no part of the ``State``, which is the same everywhere, and have rules of their own:

=====================  ==========================================================================
a rank goes on         its own, as they were at the commit that it goes on from
a new rank             those of the lowest rank that goes on
all from a checkpoint  those of the rank 0 that saved it
=====================  ==========================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch.distributed as dist

from elastic_runtime.worker.peers import Peers

_NO_STEP = -2  # next to no step


class RankNotes(ABC):
    """Keeps them for this rank, and gives them to new ranks and to checkpoints."""

    def __init__(self) -> None:
        """Notes nothing yet."""
        self._step = _NO_STEP  # of the newest commit that they were noted at
        self._was_loaded = False

    # What a trainer's adapter says of them

    @abstractmethod
    def keep(self) -> None:
        """Remembers how they are now; called at each commit."""

    @abstractmethod
    def go_back(self) -> None:
        """Makes them what was remembered last."""

    @abstractmethod
    def for_others(self) -> dict[str, Any]:
        """Them as plain JSON, for a new rank or a checkpoint."""

    @abstractmethod
    def take(self, told: dict[str, Any], *, begins: bool) -> None:
        """Takes over those of another rank.

        Args:
            told: what that one has for others.
            begins: the job begins: the other one has trained nothing yet, either.
        """

    # What a job asks

    def note(self, step: int) -> None:
        """Notes how they are at a commit.

        Args:
            step: that of the commit.
        """
        self._step = step
        self.keep()

    def enter(self, step: int) -> None:
        """Makes them those of a commit, at the beginning of a round; all ranks must call it.

        Args:
            step: of the commit that all ranks continue from.
        """
        holds = self._was_loaded or self._step in (step, step - 1)
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._exchange(Peers(dist.group.WORLD), holds=holds)
        if self._step == step and not self._was_loaded:
            self.go_back()
        self._was_loaded = False
        self.note(step)

    def enter_alone(self) -> None:
        """The same where all ranks begin together, from a checkpoint or anew."""
        self._was_loaded = False

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: those of this rank."""
        return self.for_others()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what a checkpoint has."""
        self.take(state, begins=False)
        self._was_loaded = True

    def _exchange(self, peers: Peers, *, holds: bool) -> None:
        holders = peers.gather(holds)
        if all(holders):
            return
        lead = holders.index(True) if any(holders) else 0  # of a job that begins
        told = peers.gather(self.for_others() if peers.rank == lead else None)[lead]
        if not holds and peers.rank != lead:
            self.take(told, begins=not any(holders))
