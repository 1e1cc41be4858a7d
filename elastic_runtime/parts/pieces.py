"""Something that all ranks hold together, in pieces that other ranks may have in another world.

Such as the positions in many streams of data: each stream is read by one rank, and in another world
by another one. A piece is a plain value with a name, and a key of its own in the checkpoint: so a
rank reads only those that it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class InPieces(ABC):
    """Something in a State of which each rank has some pieces."""

    @abstractmethod
    def own_pieces(self) -> dict[str, Any]:
        """What this rank saves, by name: plain values. No two ranks save the same piece."""

    @abstractmethod
    def needed_pieces(self, saved: Collection[str]) -> Collection[str]:
        """Which pieces this rank goes on from.

        Args:
            saved: the names of all that the checkpoint has, of all ranks.

        Raises:
            CheckpointUsageError: with these it cannot go on.
        """

    @abstractmethod
    def take_pieces(self, pieces: Mapping[str, Any]) -> None:
        """Goes on from what was saved.

        Args:
            pieces: those that it needs, by name.
        """
