"""``Chunk``: a block of the elements of a tensor, and where two of them overlap. No sizes in bytes.

Pure arithmetic; nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """A block of the elements of a tensor.

    Attributes:
        offsets: of its first element, one for each dimension of the tensor.
        sizes: how many elements it has along each dimension.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Chunk:
        """All of a tensor of that shape."""
        return cls((0,) * len(shape), shape)

    @property
    def count(self) -> int:
        """How many elements it holds; a scalar holds one."""
        return math.prod(self.sizes)

    def holds(self, other: Chunk) -> bool:
        """Whether all of ``other`` lies in this one."""
        return len(self.sizes) == len(other.sizes) and all(
            mine <= theirs and theirs + size <= mine + room
            for mine, room, theirs, size in zip(
                self.offsets, self.sizes, other.offsets, other.sizes, strict=True
            )
        )

    def overlap(self, other: Chunk) -> Chunk | None:
        """The elements that both hold; None if there are none.

        Args:
            other: a chunk of the same tensor.
        """
        for mine, size, theirs, room in zip(
            self.offsets, self.sizes, other.offsets, other.sizes, strict=True
        ):
            # Of thousands of pieces nearly all lie elsewhere: that is to be seen quickly.
            if mine + size <= theirs or theirs + room <= mine:
                return None
        starts = tuple(map(max, self.offsets, other.offsets))
        sizes = tuple(
            min(a + n, b + m) - start
            for a, n, b, m, start in zip(
                self.offsets, self.sizes, other.offsets, other.sizes, starts, strict=True
            )
        )
        return Chunk(starts, sizes) if all(size > 0 for size in sizes) else None

    def index(self, inner: Chunk) -> tuple[slice, ...]:
        """What picks ``inner`` out of a tensor that holds this chunk."""
        return tuple(
            slice(start - mine, start - mine + size)
            for mine, start, size in zip(self.offsets, inner.offsets, inner.sizes, strict=True)
        )

    def run(self, inner: Chunk) -> int | None:
        """Where ``inner`` begins in the elements of this chunk, if it is one run of them.

        Args:
            inner: a chunk within this one, not empty.

        Returns:
            The number of elements before it, in row-major order; None if elements that are not
            its own lie in between.
        """
        stride, before = 1, 0
        whole = True  # in all the dimensions after the present one
        for start, size, mine, room in zip(
            reversed(inner.offsets),
            reversed(inner.sizes),
            reversed(self.offsets),
            reversed(self.sizes),
            strict=True,
        ):
            if not whole and size != 1:
                return None
            whole = whole and size == room
            before += (start - mine) * stride
            stride *= room
        return before
