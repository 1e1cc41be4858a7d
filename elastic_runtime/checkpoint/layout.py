"""Which rank writes what: computed by every rank from what all of them hold.

A tensor that several ranks hold in full, or a shard that several hold, is written by one of them,
so that all have about the same to do. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Self

from elastic_runtime.errors import CheckpointUsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Item:
    """A part of the state that one rank holds: a tensor, a piece of one, or another value.

    Attributes:
        key: of the whole tensor or value.
        dtype: of the tensor, such as ``float32``; "" for another value.
        shape: of the whole tensor, all ranks together.
        offsets: where in it the piece begins, by dimension.
        sizes: of the piece, by dimension.
        bytes: of the piece; 0 for another value, whose size shows when it is saved.
        may_differ: the ranks may have different ones; that of the lowest one counts.
    """

    key: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    bytes: int = 0
    may_differ: bool = False

    def encode(self) -> list[Any]:
        """Plain JSON."""
        place = (self.shape, self.offsets, self.sizes)
        return [self.key, self.dtype, *place, self.bytes, self.may_differ]

    @classmethod
    def decode(cls, data: Sequence[Any]) -> Self:
        """Reads what ``encode`` gave, after it has been JSON."""
        key, dtype, shape, offsets, sizes, size, may_differ = data
        return cls(key, dtype, tuple(shape), tuple(offsets), tuple(sizes), size, may_differ)


@dataclass(frozen=True, slots=True)
class Plan:
    """Who writes what.

    Attributes:
        files: for each rank what its file holds, in order; values other than tensors come last,
            because their sizes are not known before.
    """

    files: tuple[tuple[Item, ...], ...]


@dataclass(slots=True)
class _Piece:
    item: Item
    holders: list[int] = field(default_factory=list)


def make_plan(held: Sequence[Sequence[Item]]) -> Plan:
    """Decides who writes what.

    Args:
        held: what each rank holds, by rank.

    Returns:
        The same for the same ``held``.

    Raises:
        CheckpointError: the ranks do not agree about a key, or do not hold all of it together.
    """
    pieces: dict[tuple[str, tuple[int, ...]], _Piece] = {}
    first: dict[str, tuple[int, Item]] = {}
    for rank, items in enumerate(held):
        for item in items:
            _compare(item, rank, *first.setdefault(item.key, (rank, item)))
            if 0 in item.sizes and 0 not in item.shape:
                continue  # more ranks than rows
            pieces.setdefault((item.key, item.offsets), _Piece(item)).holders.append(rank)
    _check_whole([one for _, one in first.values()], pieces)
    writers = _assign(pieces, len(held))
    return Plan(
        tuple(
            tuple(
                sorted(
                    (i for i in items if writers.get((i.key, i.offsets)) == rank),
                    key=lambda item: not item.dtype,
                )
            )
            for rank, items in enumerate(held)
        )
    )


def _assign(
    pieces: dict[tuple[str, tuple[int, ...]], _Piece], world: int
) -> dict[tuple[str, tuple[int, ...]], int]:
    """The largest first, each to the one of its holders that has the least to write so far."""
    loads = [0] * world
    writers = {}
    for where, piece in sorted(
        pieces.items(), key=lambda one: (len(one[1].holders) > 1, -one[1].item.bytes, one[0])
    ):
        any_will_do = piece.item.dtype and not piece.item.may_differ
        holders = piece.holders if any_will_do else piece.holders[:1]
        rank = min(holders, key=lambda one: (loads[one], one))
        loads[rank] += piece.item.bytes
        writers[where] = rank
    return writers


def _compare(item: Item, rank: int, other_rank: int, other: Item) -> None:
    if (item.dtype, item.shape) != (other.dtype, other.shape):
        raise CheckpointUsageError(
            f"the ranks disagree about {item.key}: it is {_words(other)} on rank {other_rank} and "
            f"{_words(item)} on rank {rank}; build the same entries on all ranks"
        )


def _check_whole(items: Sequence[Item], pieces: dict[tuple[str, tuple[int, ...]], _Piece]) -> None:
    present: dict[str, int] = {}
    for (key, _), piece in pieces.items():
        present[key] = present.get(key, 0) + prod(piece.item.sizes)
    for item in items:
        if present.get(item.key, 0) != prod(item.shape):
            raise CheckpointUsageError(
                f"cannot save {item.key}: all ranks together hold {present.get(item.key, 0)} of "
                f"its {prod(item.shape)} elements; each shard must be on exactly those ranks that "
                "its mesh names"
            )


def _words(item: Item) -> str:
    return f"a {item.dtype} of shape {item.shape}" if item.dtype else "no tensor"
