"""A short description of the part of the state that a rank has in memory.

Thousands of ranks have tensors of the same names, types and shapes, and each has another part of
them. So a description has three parts, and a part that several ranks share is sent only once:

- the **schema**: names, types and shapes, the same on all ranks or nearly so;
- the **cuts**: which parts of tensors are here. FSDP cuts all tensors alike, so that these are few:
  "the whole" and "the 7th of 2,048 chunks", perhaps;
- the **pattern**: which tensor is cut how, again the same on all ranks or nearly so.

A key that ends with the rank's own number, as that of a value of each rank does, is described
without the number: otherwise each rank would have another schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elastic_runtime.checkpoint.format.chunks import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A key of one rank's own ends with this and its number: see ``parts.other_parts``.
_OWN = ".rank-"


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


class EvenCut(NamedTuple):
    """One of the chunks that ``torch.chunk`` makes of a dimension, counted as DTensor does.

    All have the same length, but for the last ones, which are shorter or empty.

    Attributes:
        dim: which dimension.
        parts: into how many it is cut.
        number: of this one, from 0.
    """

    dim: int
    parts: int
    number: int

    def span(self, length: int) -> tuple[int, int]:
        """Where it begins, and how long it is.

        Args:
            length: of the dimension.
        """
        size = -(-length // self.parts)
        begin = min(self.number * size, length)
        return begin, min(size, length - begin)


# Which part of a tensor: cut along some dimensions (none: the whole), or any chunk.
Cut = tuple[EvenCut, ...] | Chunk


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """What a schema says of one item.

    Attributes:
        key: of the tensor or value.
        own: the number of the rank follows in the key.
        dtype, shape, may_differ: see ``Item``.
    """

    key: str
    own: bool
    dtype: str
    shape: tuple[int, ...]
    may_differ: bool

    def key_on(self, rank: int) -> str:
        """The key of the item that this rank has."""
        return f"{self.key}{rank}" if self.own else self.key

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 0 if it is no tensor."""
        return int(getattr(torch, self.dtype).itemsize) if self.dtype else 0


Schema = tuple[SchemaRow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What one rank has in memory. Ranks whose descriptions are equal share these objects.

    Attributes:
        schema: the items.
        pattern: for each of them which of the cuts.
        cuts: the parts of tensors that are here.
    """

    schema: Schema
    pattern: tuple[int, ...]
    cuts: tuple[Cut, ...]

    def cut(self, row: int) -> Cut:
        """How a row of the schema is cut."""
        return self.cuts[self.pattern[row]]

    def items(self, rank: int, rows: Iterable[int]) -> list[Item]:
        """Some of the items.

        Args:
            rank: whose outline this is.
            rows: which, by their place in the schema.
        """
        found = []
        for row in rows:
            one = self.schema[row]
            offsets, sizes = chunk_of(self.cut(row), one.shape)
            size = prod(sizes) * one.itemsize
            key = one.key_on(rank)
            found.append(Item(key, one.dtype, one.shape, offsets, sizes, size, one.may_differ))
        return found


def chunk_of(cut: Cut, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where a part of a tensor begins and how large it is, by dimension.

    It is asked for each shard of each tensor.

    Args:
        cut: which part.
        shape: of the tensor.
    """
    if isinstance(cut, Chunk):
        return cut.offsets, cut.sizes
    offsets, sizes = [0] * len(shape), list(shape)
    for even in cut:
        offsets[even.dim], sizes[even.dim] = even.span(shape[even.dim])
    return tuple(offsets), tuple(sizes)


# The description as text


@dataclass(frozen=True, slots=True)
class OutlineParts:
    """The description of a rank as text; equal for ranks that have the same parts.

    Attributes:
        parts: schema, pattern and cuts, each as JSON.
        is_tensor: which of the items are tensors; this is not sent.
    """

    parts: tuple[str, str, str] = ("", "", "")
    is_tensor: tuple[bool, ...] = ()


def text_digest(text: str) -> str:
    """A short name for a part of a description: ranks exchange it instead of the text."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def say(items: Sequence[Item], rank: int, world: int) -> OutlineParts:
    """Describes what a rank has in memory.

    Args:
        items: all of it.
        rank: the number of this rank.
        world: how many ranks there are.
    """
    rows, pattern = [], []
    numbers: dict[Cut, int] = {}
    known = [(world, rank)]
    number = str(rank)
    for item in items:
        own = item.key.endswith(_OWN + number)
        key = item.key[: -len(number)] if own else item.key
        rows.append(SchemaRow(key, own, item.dtype, item.shape, item.may_differ))
        pattern.append(numbers.setdefault(_cut(item, known), len(numbers)))
    schema, cuts = plain_schema(rows), plain_cuts(numbers)
    parts = json.dumps(schema), json.dumps(pattern), json.dumps(cuts)
    return OutlineParts(parts, tuple(bool(item.dtype) for item in items))


def _cut(item: Item, known: list[tuple[int, int]]) -> Cut:
    """The shortest exact description of which part of a tensor it is."""
    chunks = []
    for dim, span in enumerate(zip(item.offsets, item.sizes, strict=True)):
        length = item.shape[dim]
        if span == (0, length):
            continue
        if (even := _even_cut(dim, length, span, known)) is None:
            return Chunk(item.offsets, item.sizes)
        chunks.append(even)
    return tuple(chunks)


def _even_cut(
    dim: int, length: int, span: tuple[int, int], known: list[tuple[int, int]]
) -> EvenCut | None:
    for parts, number in known:
        even = EvenCut(dim, parts, number)
        if even.span(length) == span:
            return even
    begin, size = span
    if size <= 0 or begin % size:
        return None
    even = EvenCut(dim, -(-length // size), begin // size)  # if all before it are as long
    if even.span(length) != span:
        return None
    known.append((even.parts, even.number))  # the tensors to come are cut alike, most likely
    return even


# As plain JSON


def plain_schema(schema: Iterable[SchemaRow]) -> list[Any]:
    """A schema as plain JSON."""
    return [[row.key, row.own, row.dtype, row.shape, row.may_differ] for row in schema]


def schema_of(plain: Iterable[Any]) -> Schema:
    """Reads what ``plain_schema`` gave."""
    return tuple(
        SchemaRow(key, own, dtype, tuple(shape), may_differ)
        for key, own, dtype, shape, may_differ in plain
    )


def plain_cuts(cuts: Iterable[Cut]) -> list[Any]:
    """Cuts as plain JSON."""
    return [[cut.offsets, cut.sizes] if isinstance(cut, Chunk) else [cut] for cut in cuts]


def cuts_of(plain: Iterable[Any]) -> tuple[Cut, ...]:
    """Reads what ``plain_cuts`` gave."""
    return tuple(_cut_of(*each) for each in plain)


def _cut_of(first: Any, sizes: Any = None) -> Cut:
    if sizes is not None:
        return Chunk(tuple(first), tuple(sizes))
    return tuple(EvenCut(*each) for each in first)
