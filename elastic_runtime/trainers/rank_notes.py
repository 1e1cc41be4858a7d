"""What a rank has noted of the training for itself: metrics, callbacks, whether to stop.

Ranks may differ in these: a metric that is not averaged over ranks is one of each rank. So they
are no part of the ``State``, which is the same everywhere, and have rules of their own:

=====================  ==========================================================================
a rank goes on         its own, as they were at the commit that it goes on from
a rank is new, or was  those of the lowest rank that goes on, as they were at that commit
a commit behind
all from a checkpoint  those of the rank 0 that saved it
=====================  ==========================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch.distributed as dist

from elastic_runtime.worker.peers import Peers


class RankNotes(ABC):
    """Keeps them for this rank, and gives them to new ranks and to checkpoints."""

    def __init__(self) -> None:
        """Notes nothing yet."""
        # At the two newest commits: the newer one may not have come about.
        self._notes: dict[int, Any] = {}
        self._was_loaded = False

    # What a trainer's adapter says of them

    @abstractmethod
    def keep(self) -> Any:
        """How they are now, to go back to; called at each commit."""

    @abstractmethod
    def go_back(self, kept: Any) -> None:
        """Makes them what was kept."""

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

    def to_share(self) -> Any:
        """What is put together from all ranks that go on, as plain JSON."""
        return None

    def take_shared(self, shares: list[Any]) -> None:
        """Takes what is put together so.

        Args:
            shares: of the ranks that go on.
        """
        return None

    # What a job asks

    def note(self, step: int) -> None:
        """Notes how they are at a commit.

        Args:
            step: that of the commit.
        """
        before = {number: kept for number, kept in self._notes.items() if number == step - 1}
        self._notes = {**before, step: self.keep()}

    def enter(self, step: int) -> None:
        """Makes them those of a commit, at the beginning of a round; all ranks must call it.

        Args:
            step: of the commit that all ranks continue from.
        """
        goes_on = self._was_loaded or step in self._notes
        if step in self._notes and not self._was_loaded:
            self.go_back(self._notes[step])
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._exchange(Peers(dist.group.WORLD), goes_on=goes_on)
        self._was_loaded = False
        self._notes = {}
        self.note(step)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: those of this rank."""
        return self.for_others()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what a checkpoint has."""
        self.take(state, begins=False)
        self._was_loaded = True

    def _exchange(self, peers: Peers, *, goes_on: bool) -> None:
        known = peers.gather([goes_on, self.to_share() if goes_on else None])
        lead = next((rank for rank, (goes, _) in enumerate(known) if goes), 0)
        begins = not known[lead][0]
        if not all(goes for goes, _ in known):
            told = peers.gather(self.for_others() if peers.rank == lead else None)[lead]
            if peers.rank != lead and not goes_on:
                self.take(told, begins=begins)
        self.take_shared([share for goes, share in known if goes])
