"""The file ``.outline``: what a checkpoint of many parts consists of, in few bytes.

``.metadata`` has some 70 bytes for each shard, and to find one shard all is read. This has

- first what each rank had in memory, and which of it its file contains, in the form in which the
  ranks describe it (see ``rank_outline``): plain JSON, some 100 KB for thousands of ranks;
- then a section for each file, in the order of the manifest: see ``part_columns``.

A rank that loads reads the first part and the sections of the files that it needs. Everything in it
is checked before it is used, like ``.metadata`` (see ``metadata_reader``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.metadata_reader import checked_type, piece_of, sizes_of
from elastic_runtime.checkpoint.format.part_columns import PartColumns
from elastic_runtime.checkpoint.format.rank_outline import (
    Outline,
    Schema,
    chunk_of,
    cuts_of,
    plain_cuts,
    plain_schema,
    schema_of,
)
from elastic_runtime.checkpoint.format.stored_items import Stored, StoredTensor, StoredValue
from elastic_runtime.checkpoint.format.write_plan import in_order, rows_of
from elastic_runtime.errors import DamagedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.checkpoint.format.manifest import Manifest
    from elastic_runtime.checkpoint.format.rank_outline import SchemaRow
    from elastic_runtime.checkpoint.format.write_plan import WritePlan

# Reads the parts of some files, by name.
ReadParts = Callable[[Iterable[str]], Mapping[str, PartColumns]]


def file_name(rank: int) -> str:
    """The name of the file that a rank writes."""
    return f"rank-{rank}.distcp"


# Written


def encode(plan: WritePlan) -> bytes:
    """The first part of the file: what each rank had in memory and wrote.

    Args:
        plan: the plan of the save.
    """
    schemas, patterns, cuts, shares = _Numbered(), _Numbered(), _Numbered(), _Numbered()
    ranks = [
        (
            schemas.number(id(held.schema), held.schema),
            patterns.number(id(held.pattern), held.pattern),
            cuts.number(id(held.cuts), held.cuts),
            shares.number(share := plan.share(rank), share),
        )
        for rank, held in enumerate(plan.outlines)
    ]
    body = {
        "schemas": [plain_schema(each) for each in schemas.found],
        "patterns": patterns.found,
        "cuts": [plain_cuts(each) for each in cuts.found],
        "shares": shares.found,
        "ranks": ranks,
    }
    return json.dumps(body, separators=(",", ":")).encode()


class _Numbered:
    """Stores equal values of several ranks once, and numbers them."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._numbers: dict[object, int] = {}

    def number(self, name: object, value: Any) -> int:
        """The number of a value.

        Args:
            name: identifies the value; equal values have the same name.
            value: the value itself.
        """
        number = self._numbers.setdefault(name, len(self.found))
        if number == len(self.found):
            self.found.append(value)
        return number


# Read


@dataclass(frozen=True, slots=True, eq=False)
class _Writers:
    """Ranks that have the same schema, and have written the same rows of it.

    Attributes:
        schema: theirs.
        places: which part of the file of each of them a row is.
        ranks: what each of them held.
        patterns: all of theirs, by identity.
    """

    schema: Schema
    places: Mapping[int, int]
    ranks: dict[int, Outline] = field(default_factory=dict)
    patterns: dict[int, Sequence[int]] = field(default_factory=dict)

    def add(self, rank: int, held: Outline) -> None:
        """Takes in a rank."""
        self.ranks[rank] = held
        self.patterns[id(held.pattern)] = held.pattern

    def alone(self, rank: int) -> _Writers:
        """One of them."""
        one = _Writers(self.schema, self.places)
        one.add(rank, self.ranks[rank])
        return one

    def columns(self, row: int) -> tuple[int, ...]:
        """How they cut a row. Rows for which this is the same, and the shape, are cut alike."""
        return tuple(pattern[row] for pattern in self.patterns.values())


# Who holds a key, and in which row.
_Holders = Sequence[tuple[_Writers, int]]
# A piece of a tensor: the holder's place in ``_Holders``, its rank, and which elements.
_Pieces = Sequence[tuple[int, int, Chunk]]


class Outlined:
    """What ``.outline`` says; ``Contents`` of a checkpoint.

    Attributes:
        stored: what there is, but not where.
    """

    def __init__(self, where: str, data: bytes, manifest: Manifest, read: ReadParts) -> None:
        """Reads what the first part says.

        Args:
            where: the path of the file, for errors.
            data: its first part.
            manifest: lists the only files that anything may be in.
            read: reads the parts of files.

        Raises:
            DamagedCheckpoint: it does not describe what the files can consist of.
        """
        self._where = where
        self._read = read
        self._alike: dict[object, _Pieces] = {}
        self._wanted: dict[tuple[int, Chunk], _Pieces] = {}
        with self._refused():
            items = {file.name: file.items for file in manifest.files}
            self._holders = _holders(_groups(json.loads(data), items))
            self.stored: Mapping[str, Stored] = {
                key: self._described(key, holders) for key, holders in self._holders.items()
            }

    def find(self, wanted: Mapping[str, Chunk | None]) -> Mapping[str, Stored]:
        """See ``Contents``: reads the parts of the files that hold what is wanted."""
        pieces = {key: self._overlapping(key, chunk) for key, chunk in wanted.items()}
        ranks = {rank for found in pieces.values() for _, rank, _ in found}
        parts = self._read({file_name(rank) for rank in ranks})
        with self._refused():
            return {key: self._found(key, found, parts) for key, found in pieces.items()}

    def _described(self, key: str, holders: _Holders) -> Stored:
        row = _row(holders[0])
        if any((_row(one).dtype, _row(one).shape) != (row.dtype, row.shape) for one in holders):
            raise DamagedCheckpoint(f"its ranks disagree about {key}")
        shape = sizes_of(row.shape)
        self._pieces(key)  # they are compared with it
        if not row.dtype:
            return StoredValue()
        return StoredTensor(shape, checked_type(getattr(torch, row.dtype, None), torch.dtype))

    def _pieces(self, key: str) -> _Pieces:
        """All pieces of a tensor; the same object for tensors of the same shape that lie alike."""
        holders = self._holders[key]
        row = _row(holders[0])
        alike = (
            bool(row.dtype),
            row.shape,
            *((id(group), group.columns(at)) for group, at in holders),
        )
        found = self._alike.get(alike)
        if found is None:
            whole = Chunk.of(row.shape)
            found = self._alike[alike] = [
                (number, rank, _chunk(key, whole, held, at))
                for number, (group, at) in enumerate(holders)
                for rank, held in group.ranks.items()
            ]
            if sum(chunk.count for _, _, chunk in found) != whole.count:
                raise DamagedCheckpoint(f"{key} is not stored as a whole")
        return found

    def _overlapping(self, key: str, chunk: Chunk | None) -> _Pieces:
        pieces = self._pieces(key)
        if chunk is None:
            return pieces
        asked = id(pieces), chunk
        found = self._wanted.get(asked)
        if found is None:
            found = self._wanted[asked] = [
                each for each in pieces if not each[2].count or each[2].overlap(chunk)
            ]
        return found

    def _found(self, key: str, pieces: _Pieces, parts: Mapping[str, PartColumns]) -> Stored:
        holders, stored = self._holders[key], self.stored[key]
        places = []
        for number, rank, chunk in pieces:
            group, row = holders[number]
            file = file_name(rank)
            places.append((file, parts[file][group.places[row]], chunk))
        if isinstance(stored, StoredTensor):
            found = tuple(piece_of(key, stored.dtype, *each) for each in places)
            return StoredTensor(stored.shape, stored.dtype, pieces=found)
        [(file, part, _)] = places
        return StoredValue(file, part)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except DamagedCheckpoint as error:
            raise DamagedCheckpoint(f"{self._where} is refused: {error}") from None
        except Exception as error:
            # What was tampered with can raise anything.
            raise DamagedCheckpoint(f"{self._where} is refused: {error!r}") from None


def _groups(body: Mapping[str, Any], items: Mapping[str, int]) -> list[_Writers]:
    """Groups the ranks by what they had in memory and wrote.

    Args:
        body: see ``encode``.
        items: how many parts each file has.
    """
    schemas = [schema_of(each) for each in body["schemas"]]
    patterns = [tuple(each) for each in body["patterns"]]
    cuts = [cuts_of(each) for each in body["cuts"]]
    groups: dict[tuple[int, int], _Writers] = {}
    for rank, (one, two, three, share) in enumerate(body["ranks"]):
        group = groups.get((one, share))
        if group is None:
            schema = schemas[one]
            bits = body["shares"][share]
            if len(bits) > len(schema) // 4 + 1:
                raise DamagedCheckpoint(f"rank {rank} has written more than it had")
            rows = in_order(rows_of(bits), [bool(row.dtype) for row in schema])
            places = {row: place for place, row in enumerate(rows)}
            group = groups[one, share] = _Writers(schema, places)
        if items.get(file_name(rank), 0) != len(group.places):
            raise DamagedCheckpoint(f"rank {rank} has not written what its file consists of")
        group.add(rank, Outline(group.schema, patterns[two], cuts[three]))
    return list(groups.values())


def _holders(groups: Iterable[_Writers]) -> dict[str, list[tuple[_Writers, int]]]:
    """Who holds what, by key."""
    found: dict[str, list[tuple[_Writers, int]]] = {}
    for group in groups:
        for row in group.places:
            one = group.schema[row]
            if not one.own:
                found.setdefault(checked_type(one.key, str), []).append((group, row))
                continue
            for rank in group.ranks:
                found.setdefault(one.key_on(rank), []).append((group.alone(rank), row))
    return found


def _row(holder: tuple[_Writers, int]) -> SchemaRow:
    group, row = holder
    return group.schema[row]


def _chunk(key: str, whole: Chunk, held: Outline, row: int) -> Chunk:
    if not held.schema[row].dtype:
        return whole
    offsets, sizes = chunk_of(held.cut(row), whole.sizes)
    chunk = Chunk(sizes_of(offsets), sizes_of(sizes))
    if not whole.holds(chunk):
        raise DamagedCheckpoint(f"{key} has a piece that lies outside of it")
    return chunk
