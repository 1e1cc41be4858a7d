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
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from elastic_runtime.worker.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable


class _Worth(IntEnum):
    """What a rank's notes are worth at the beginning of a round."""

    NOTHING = 0
    PRESENT = 1  # it has completed the step, and noted nothing then
    NOTED = 2


class RankNotes(ABC):
    """Keeps them for this rank, and gives them to new ranks and to checkpoints."""

    def __init__(self, commits: Callable[[], int]) -> None:
        """Notes nothing yet.

        Args:
            commits: how many steps this process has committed itself, whatever it has received.
        """
        self._commits = commits
        # At the two newest commits: the newer one may not have come about.
        self._notes: dict[int, Any] = {}
        self._entered: tuple[int, int] | None = None  # the step and commits of the last round
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
        worth = self._worth(step)
        if step in self._notes and not self._was_loaded:
            self.go_back(self._notes[step])
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._exchange(Peers(dist.group.WORLD), worth)
        self._was_loaded = False
        self._notes = {}
        self.note(step)
        self._entered = step, self._commits()

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

    def _worth(self, step: int) -> _Worth:
        if self._was_loaded or step in self._notes:
            return _Worth.NOTED
        if self._entered is not None:
            began, commits = self._entered
            if began + self._commits() - commits == step:
                return _Worth.PRESENT
        return _Worth.NOTHING

    def _exchange(self, peers: Peers, worth: _Worth) -> None:
        known = peers.gather([worth, self.to_share() if worth else None])
        most = max(each for each, _ in known)
        if any(each < most for each, _ in known) or most == _Worth.NOTHING:
            lead = next(rank for rank, (each, _) in enumerate(known) if each == most)
            told = peers.gather(self.for_others() if peers.rank == lead else None)[lead]
            if peers.rank != lead and (worth < most or most == _Worth.NOTHING):
                self.take(told, begins=most == _Worth.NOTHING)
        self.take_shared([share for each, share in known if each])
