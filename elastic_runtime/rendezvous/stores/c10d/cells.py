"""What is kept in the TCPStore, and what one node makes of it: pure.

A key of the contract is a *cell*: a header and the value. A removed key leaves an empty cell
behind, so that versions only ever grow and an old write cannot be taken for a new one.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import EVENTS, NODES
from elastic_runtime.rendezvous.store_contract import ABSENT, Changed, Entry, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# magic, alive, version, created, TTL of the lease in seconds, lease (zeros: none), writer's stamp
_HEADER = struct.Struct(">4s?QQd16s8s")
_MAGIC = b"ER1\n"
_NO_LEASE = bytes(16)

# What somebody else wrote gets a version above all of ours.
_FOREIGN = 1 << 62


@dataclass(frozen=True, slots=True)
class Cell:
    """One key as the TCPStore has it.

    Attributes:
        version: grows by one with each write; 0: was never written.
        alive: the key exists.
        created: its place in the order of creation.
        value: the bytes.
        lease: id of the lease that it hangs on; empty: none.
        ttl: of that lease, in seconds.
    """

    version: int = 0
    alive: bool = False
    created: int = 0
    value: bytes = b""
    lease: bytes = b""
    ttl: float = 0.0

    def encode(self, stamp: bytes) -> bytes:
        """The bytes to be stored.

        Args:
            stamp: 8 random bytes, so that two writers of one value can tell who was first.
        """
        lease = self.lease or _NO_LEASE
        header = (_MAGIC, self.alive, self.version, self.created, self.ttl, lease, stamp)
        return _HEADER.pack(*header) + self.value

    @classmethod
    def decode(cls, raw: bytes) -> Cell:
        """The cell in these bytes.

        What is none of ours becomes a value as it is, so that whoever reads the record says so.
        """
        if not raw:
            return cls()
        if len(raw) < _HEADER.size or raw[: len(_MAGIC)] != _MAGIC:
            return cls(version=_FOREIGN | zlib.crc32(raw), alive=True, value=raw)
        _, alive, version, created, ttl, lease, _ = _HEADER.unpack_from(raw)
        lease = b"" if lease == _NO_LEASE else lease
        return cls(version, alive, created, raw[_HEADER.size :], lease, ttl)

    def written(self, value: bytes, created: int, lease: bytes = b"", ttl: float = 0.0) -> Cell:
        """The cell after a write; ``created`` counts only if the key did not exist."""
        created = self.created if self.alive else created
        return Cell(self.version + 1, True, created, value, lease, ttl)

    def removed(self) -> Cell:
        """The cell after a removal."""
        return Cell(self.version + 1, False, self.created)

    @property
    def expected(self) -> int:
        """The version that an ``Expect`` compares."""
        return self.version if self.alive else ABSENT

    def entry(self, key: str) -> Entry:
        """The cell as the contract has it."""
        return Entry(key, self.value, self.created, self.version)


class View:
    """What one node follows, as far as it has heard. Not thread-safe.

    Args:
        own: this node's key.
    """

    def __init__(self, own: str) -> None:
        self.own = own
        self.wide = False
        self.without: frozenset[str] = frozenset()
        self.leader = ""
        self.cells: dict[str, Cell] = {}

    def follows(self, key: str) -> bool:
        """Whether the listener hears of this key."""
        if key.startswith(NODES):
            return self.wide or key in (self.own, self.leader)
        return not key.startswith(EVENTS)

    def merge(self, found: Mapping[str, Cell]) -> Changed | None:
        """Takes in cells that were read, in any order, older ones too.

        Returns:
            What is news; None if nothing is.
        """
        puts: list[Entry] = []
        deletes: list[str] = []
        for key, cell in found.items():
            known = self.cells.get(key, Cell())
            if cell.version <= known.version or not self.follows(key):
                continue
            self.cells[key] = cell
            if cell.alive:
                puts.append(cell.entry(key))
            elif known.alive:
                deletes.append(key)
        return Changed(tuple(puts), tuple(deletes)) if puts or deletes else None

    def show(self, found: Mapping[str, Cell], forgot: bool = False) -> Snapshot:
        """Takes in all that is followed now, and forgets the rest."""
        self.merge(found)
        self.cells = {key: cell for key, cell in self.cells.items() if self.follows(key)}
        entries = (cell.entry(key) for key, cell in self.cells.items() if cell.alive)
        return Snapshot(tuple(sorted(entries, key=lambda e: e.created)), self.wide, forgot)

    def leases(self) -> dict[bytes, float]:
        """The leases of other nodes that are followed, with their TTL in seconds."""
        return {
            cell.lease: cell.ttl
            for key, cell in self.cells.items()
            if cell.alive and cell.lease and key != self.own
        }

    def held_by(self, lease: bytes) -> list[str]:
        """The keys that hang on a lease."""
        return [key for key, cell in self.cells.items() if cell.alive and cell.lease == lease]


@dataclass(frozen=True, slots=True)
class _Beat:
    count: int
    moved: float


class Ageing:
    """Decides which leases have ended: their counter has not moved for their TTL.

    Times are those of the observer's own monotonic clock.
    """

    def __init__(self) -> None:
        self._beats: dict[bytes, _Beat] = {}
        self._seen = 0.0

    def observe(
        self, counts: Mapping[bytes, int], ttls: Mapping[bytes, float], now: float
    ) -> list[bytes]:
        """Takes in the counters.

        Args:
            counts: each lease's counter.
            ttls: each lease's TTL in seconds.
            now: seconds.

        Returns:
            The leases that have ended.
        """
        gap, self._seen = now - self._seen, now
        beats: dict[bytes, _Beat] = {}
        for lease, count in counts.items():
            old = self._beats.get(lease)
            # An observer that was stopped itself has seen nothing, and cannot blame anybody.
            fresh = old is None or old.count != count or gap > ttls[lease] / 2
            beats[lease] = _Beat(count, now) if old is None or fresh else old
        self._beats = beats
        return [lease for lease, beat in beats.items() if now - beat.moved > ttls[lease]]


def oldest(cells: Iterable[tuple[str, Cell]], without: frozenset[str]) -> str:
    """The key of the oldest node that exists and is not passed over; "" if there is none."""
    living = ((cell.created, key) for key, cell in cells if cell.alive and key not in without)
    return min(living, default=(0, ""))[1]
