"""What a checkpoint holds, as its metadata and its manifest tell: which items, and where they are.

All of it has been checked against the sizes of the files when one of these objects exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from elastic_runtime.checkpoint.boxes import Box
    from elastic_runtime.checkpoint.manifest import Part


@dataclass(frozen=True, slots=True)
class Piece:
    """Some elements of a tensor.

    Attributes:
        file: the name of the file that holds them.
        part: which part of the file.
        box: which elements.
    """

    file: str
    part: Part
    box: Box


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor.

    Attributes:
        shape: of the whole tensor.
        dtype: of its elements.
        pieces: which together hold all of its elements.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Anything else: the bytes of a file that ``torch.save`` has made.

    Attributes:
        file: the name of the file that holds them.
        part: which part of the file.
    """

    file: str
    part: Part


Stored = StoredTensor | StoredValue
