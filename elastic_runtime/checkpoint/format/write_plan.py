"""Which rank writes what: rank 0 decides it from descriptions of what all ranks have in memory.

A tensor or shard that several ranks have is written by one of them, chosen so that all ranks write
about the same number of bytes.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.rank_outline import chunk_of
from elastic_runtime.errors import CheckpointUsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elastic_runtime.checkpoint.format.rank_outline import Cut, Item, Outline, Schema, SchemaRow

    # Which elements, by the first one and the number along each dimension: see ``Chunk``.
    _Where = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class WritePlan:
    """Which rank writes what. It is kept for long, so it stores numbers, and makes items on demand.

    Attributes:
        outlines: what each rank has in memory.
        rows: for each rank the rows of its schema that its file contains: see ``in_order``.
        sizes: the size of each of them in bytes; -1 for a value that is no tensor.
    """

    outlines: tuple[Outline, ...]
    rows: tuple[array[int], ...]
    sizes: tuple[array[int], ...]

    def file(self, rank: int) -> list[Item]:
        """What the file of a rank holds, in order."""
        return self.outlines[rank].items(rank, self.rows[rank])

    def share(self, rank: int) -> str:
        """The part of the plan that is sent to a rank: a bit for each row of its schema, in hex."""
        return f"{sum(1 << row for row in self.rows[rank]):x}"


def rows_of(share: str) -> list[int]:
    """The rows that a rank is to write, not yet in order.

    Args:
        share: see ``WritePlan.share``.
    """
    bits = int(share, 16)
    return [row for row in range(bits.bit_length()) if bits >> row & 1]


def in_order(rows: Iterable[int], is_tensor: Sequence[bool]) -> list[int]:
    """The order of a file: values other than tensors come last, as their sizes show late.

    Args:
        rows: what is in the file, by its place in what the rank holds.
        is_tensor: what of that is a tensor.
    """
    return sorted(rows, key=lambda row: (not is_tensor[row], row))


def make_plan(outlines: Sequence[Outline]) -> WritePlan:
    """Decides who writes what.

    Args:
        outlines: what each rank has in memory, by rank. Ranks whose descriptions are equal should
            share the same object, which is then examined only once.

    Returns:
        The plan; the same one for the same ``outlines``.

    Raises:
        CheckpointError: the ranks do not agree about a key, or do not hold all of it together.
    """
    files = _Files(outlines)
    shared: list[tuple[int, str, _Where, Sequence[_EqualRanks], _Key]] = []
    for name, key in _keys(_families(outlines)).items():
        pieces = _pieces(key)
        _check_whole(name, key.row, pieces)
        itemsize = key.row.itemsize
        for where, groups in pieces.items():
            size = prod(where[1]) * itemsize if itemsize else -1
            if len(groups) == 1 and len(groups[0].ranks) == 1:
                rank = groups[0].ranks[0]
                files.give(rank, key.row_on(rank), size)
            else:
                shared.append((size, name, where, groups, key))
    # The largest first, each to the one of its holders that has the least to write so far.
    shared.sort(key=lambda piece: (-max(0, piece[0]), *piece[1:3]))
    for size, _, _, groups, key in shared:
        holders = files.holders(groups)
        any_will_do = key.row.dtype and not key.row.may_differ
        rank = holders.least() if any_will_do else holders.ranks[0]
        files.give(rank, key.row_on(rank), size)
    return files.plan()


# What is the same on many ranks


@dataclass(slots=True, eq=False)
class _EqualRanks:
    """Ranks that hold the same."""

    outline: Outline
    ranks: list[int] = field(default_factory=list)


class _Family:
    """Ranks with the same schema: they differ in which parts of the tensors they hold."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.ranks: set[int] = set()
        self.groups: dict[tuple[int, int], _EqualRanks] = {}
        self._patterns: dict[int, Sequence[int]] = {}
        self._by_cut: dict[tuple[int, ...], dict[Cut, list[_EqualRanks]]] = {}

    def add(self, rank: int, outline: Outline) -> None:
        """Takes in a rank."""
        self.ranks.add(rank)
        self._patterns[id(outline.pattern)] = outline.pattern
        same = id(outline.pattern), id(outline.cuts)
        self.groups.setdefault(same, _EqualRanks(outline)).ranks.append(rank)

    def by_cut(self, row: int) -> dict[Cut, list[_EqualRanks]]:
        """Who holds which part of a row; the same for all rows that are cut alike."""
        alike = tuple(pattern[row] for pattern in self._patterns.values())
        found = self._by_cut.get(alike)
        if found is None:
            found = self._by_cut[alike] = {}
            for group in self.groups.values():
                found.setdefault(group.outline.cut(row), []).append(group)
        return found


@dataclass(slots=True, eq=False)
class _Key:
    """One tensor or value of the whole state.

    Attributes:
        row: what the lowest rank says of it that has it.
        rank: that one.
        holders: who has it, and in which row of their schema.
    """

    row: SchemaRow
    rank: int
    holders: list[tuple[_Family, int]] = field(default_factory=list)

    def row_on(self, rank: int) -> int:
        """In which row of its schema a rank has it."""
        return next(row for family, row in self.holders if rank in family.ranks)


def _families(outlines: Sequence[Outline]) -> list[_Family]:
    families: dict[int, _Family] = {}
    for rank, outline in enumerate(outlines):
        families.setdefault(id(outline.schema), _Family(outline.schema)).add(rank, outline)
    return list(families.values())


def _keys(families: Iterable[_Family]) -> dict[str, _Key]:
    keys: dict[str, _Key] = {}

    def add(row: SchemaRow, at: int, family: _Family, rank: int) -> None:
        name = row.key_on(rank)
        key = keys.setdefault(name, _Key(row, rank))
        _compare(name, row, rank, key)
        key.holders.append((family, at))

    for family in families:
        for at, row in enumerate(family.schema):
            if not row.own:
                add(row, at, family, min(family.ranks))
        if any(row.own for row in family.schema):
            for one, rank in _each_alone(family):
                for at, row in enumerate(family.schema):
                    if row.own:
                        add(row, at, one, rank)
    return keys


def _each_alone(family: _Family) -> Iterator[tuple[_Family, int]]:
    for group in family.groups.values():
        for rank in group.ranks:
            alone = _Family(family.schema)
            alone.add(rank, group.outline)
            yield alone, rank


def _pieces(key: _Key) -> dict[_Where, Sequence[_EqualRanks]]:
    """Who holds which part of a tensor."""
    pieces: dict[_Where, Sequence[_EqualRanks]] = {}
    shape = key.row.shape
    for family, row in key.holders:
        for cut, groups in family.by_cut(row).items():
            where = chunk_of(cut, shape)
            if 0 in where[1] and 0 not in shape:
                continue  # more ranks than rows
            known = pieces.get(where)
            # The same part may be described in several ways, and be in several schemas.
            pieces[where] = groups if known is None else [*known, *groups]
    return pieces


def _compare(name: str, row: SchemaRow, rank: int, other: _Key) -> None:
    if (row.dtype, row.shape) != (other.row.dtype, other.row.shape):
        raise CheckpointUsageError(
            f"the ranks disagree about {name}: it is {_words(other.row)} on rank {other.rank} and "
            f"{_words(row)} on rank {rank}; build the same State on all ranks"
        )


def _check_whole(name: str, row: SchemaRow, pieces: Iterable[_Where]) -> None:
    present, all_ = sum(prod(sizes) for _, sizes in pieces), prod(row.shape)
    if present != all_:
        raise CheckpointUsageError(
            f"cannot save {name}: all ranks together hold {present} of its {all_} elements; each "
            "shard must be on exactly those ranks that its mesh names"
        )


def _words(row: SchemaRow) -> str:
    return f"a {row.dtype} of shape {row.shape}" if row.dtype else "no tensor"


# Who writes it


class _Holders:
    """Ranks of which any can write something."""

    def __init__(self, ranks: Iterable[int], loads: list[int]) -> None:
        self.ranks = sorted(ranks)
        self._loads = loads
        self._heap = [(0, rank) for rank in self.ranks]

    def least(self) -> int:
        """The one that has the least to write so far; of several the lowest."""
        while True:
            load, rank = self._heap[0]
            if load == self._loads[rank]:
                return rank
            # Loads only grow: one that is out of date is here too early, never too late.
            heapq.heapreplace(self._heap, (self._loads[rank], rank))


class _Files:
    """The files of all ranks, while they are filled."""

    def __init__(self, outlines: Sequence[Outline]) -> None:
        self._outlines = outlines
        self._loads = [0] * len(outlines)
        self._sizes: list[dict[int, int]] = [{} for _ in outlines]  # by row
        self._holders: dict[tuple[int, ...], _Holders] = {}

    def give(self, rank: int, row: int, size: int) -> None:
        """Has a rank write something: the row of its schema, and bytes, -1 if it is no tensor."""
        self._sizes[rank][row] = size
        self._loads[rank] += max(0, size)

    def holders(self, groups: Iterable[_EqualRanks]) -> _Holders:
        """All ranks of some groups; mostly they are those of another piece, too."""
        several = list(groups)
        key = tuple(map(id, several))
        found = self._holders.get(key)
        if found is None:
            ranks = (rank for group in several for rank in group.ranks)
            found = self._holders[key] = _Holders(ranks, self._loads)
        return found

    def plan(self) -> WritePlan:
        """All of them."""
        rows, sizes = [], []
        for outline, taken in zip(self._outlines, self._sizes, strict=True):
            is_tensor = [bool(row.dtype) for row in outline.schema]
            order = in_order(taken, is_tensor)
            rows.append(array("I", order))
            sizes.append(array("q", (taken[row] for row in order)))
        return WritePlan(tuple(self._outlines), tuple(rows), tuple(sizes))
