"""The content of a checkpoint, as its description files list it: which items, and where they are.

All of it has been checked against the sizes of the files when one of these objects exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from elastic_runtime.checkpoint.format.manifest import Part
from elastic_runtime.parts.tensor_form import TensorForm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.checkpoint.format.chunks import Chunk

_NOWHERE = Part(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some elements of a tensor.

    Attributes:
        file: the name of the file that holds them.
        part: which part of the file.
        chunk: which elements.
    """

    file: str
    part: Part
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class StoredTensor(TensorForm):
    """A tensor; its shape is that of the whole one.

    Attributes:
        pieces: which together hold all of its elements that were asked for.
    """

    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Anything else: the bytes of a file that ``torch.save`` has made.

    Attributes:
        file: the name of the file that holds them; "" until it is asked for.
        part: which part of the file.
    """

    file: str = ""
    part: Part = _NOWHERE


Stored = StoredTensor | StoredValue


class Contents(Protocol):
    """The complete content of a checkpoint."""

    @property
    def stored(self) -> Mapping[str, Stored]:
        """What there is, by key; not always where."""

    def find(self, wanted: Mapping[str, Chunk | None]) -> Mapping[str, Stored]:
        """Finds out where something is.

        Args:
            wanted: by key, which elements of a tensor, or None for a value.

        Raises:
            DamagedCheckpoint: it cannot be there.
        """


@dataclass(frozen=True, slots=True)
class Known:
    """Contents of which is known where everything is."""

    stored: Mapping[str, Stored]

    def find(self, wanted: Mapping[str, Chunk | None]) -> Mapping[str, Stored]:
        """See ``Contents``; it is more than was asked for."""
        return self.stored
