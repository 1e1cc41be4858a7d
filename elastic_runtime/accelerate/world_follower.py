"""Tells accelerate, and what it has prepared, of each world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from elastic_runtime.accelerate import accelerate_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class _InWorlds(Protocol):
    def enter(self) -> None:
        """Other ranks are there from now on."""


class WorldFollower:
    """What happens to an accelerator between two rounds; see ``worker.round_breaks``."""

    def __init__(
        self, loaders: Iterable[_InWorlds], leave: Callable[[], None], local_rank: int
    ) -> None:
        """Follows from the next round on.

        Args:
            loaders: those that were prepared; they may come and go.
            leave: forgets what was made for the ranks of one world.
            local_rank: of this process, which never changes.
        """
        self._loaders, self._leave = loaders, leave
        self._rank, self._local_rank = 0, local_rank

    def settle(self, *, first: bool) -> None:
        """A round is left."""
        self._leave()

    def prepare(self, rank: int, world: int) -> None:
        """Says which ranks there are, or are about to be."""
        self._rank = rank
        accelerate_world.enter(rank, world, self._local_rank)
        for loader in list(self._loaders):
            loader.enter()

    def finish(self) -> None:
        """Nothing waits for other ranks any more; rank 0 is still the main process."""
        accelerate_world.stand_alone(self._rank, self._local_rank)
        for loader in list(self._loaders):
            loader.enter()
