"""The keys of one run in a TCPStore: cells, the order of their creation, and what was written.

A TCPStore has single keys, a compare-and-swap and counters; it can wait for a key to appear, but
not for a change, and not for any of several. So each change is also announced on a *tape*, an
append-only list with a counter. All changes of common keys and all ends of nodes are announced on
one tape that every node waits for; what nodes write is announced on another one, which only the
leader waits for. A writer that dies before it has announced a change leaves it to be found by the
next regular look.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import EVENTS, NODES
from elastic_runtime.rendezvous.stores.c10d.cells import Cell, oldest
from elastic_runtime.rendezvous.stores.c10d.link import NotThere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from elastic_runtime.rendezvous.store_contract import Transaction
    from elastic_runtime.rendezvous.stores.c10d.link import Link

_STORE_ID = "elastic/id"
_RUNS = "elastic/run/"
_INDEX = "/index"

# Entries of a tape of announcements that are kept. Who is that far behind looks at everything.
_KEEP = 4096

# An announcement of nothing. (An empty one would not wake who waits for it.)
NOTHING = b"\n"

# What a reader writes where an entry should have been; its writer then takes another place.
_VOID = b"\0"

# How many keys are read at once, how many at first to find the oldest node (everybody looks for it,
# and it is among the first), and how many dead nodes are worth being remembered as such.
_BATCH = 256
_FEW = 8
_WORTH = 64


class Tape:
    """An append-only list of byte strings in a TCPStore; entries count from 1.

    Args:
        link: the connection.
        name: the key of its counter, and the beginning of its entries' keys.
        keep: how many entries are kept; 0: all.
    """

    def __init__(self, link: Link, name: str, keep: int = 0) -> None:
        self._link = link
        self._name = name
        self._keep = keep

    def length(self) -> int:
        """How many entries were begun."""
        return self._link.add(self._name, 0)

    def append(self, value: bytes) -> int:
        """Adds an entry.

        Returns:
            Its number.
        """
        while True:
            number = self._link.add(self._name, 1)
            if self._link.swap(self._slot(number), b"", value) == value:
                break
        if self._keep and number > self._keep:
            self._link.delete(self._slot(number - self._keep))
        return number

    def read(self, first: int, last: int) -> list[bytes]:
        """The entries with these numbers; those whose writer has died are empty."""
        found: list[bytes] = []
        for start in range(first, last + 1, _BATCH):
            slots = [self._slot(n) for n in range(start, min(start + _BATCH, last + 1))]
            try:
                found += self._link.read(slots)
            except NotThere:
                found += [self._link.swap(slot, b"", _VOID) for slot in slots]
        return [b"" if value == _VOID else value for value in found]

    def wait(self, number: int) -> None:
        """Waits for an entry, for as long as it takes."""
        self._link.wait(self._slot(number))

    def fill(self, number: int) -> None:
        """Makes an entry void if it was never written."""
        self._link.swap(self._slot(number), b"", _VOID)

    def lags(self, number: int, length: int) -> bool:
        """Whether entries after this number may be gone already."""
        return self._keep > 0 and length - number > self._keep // 2

    def _slot(self, number: int) -> str:
        return f"{self._name}/{number}"


def runs_in(keys: Iterable[str]) -> list[str]:
    """The ids of the runs that have left something in a store with these keys."""
    names = (key.removeprefix(_RUNS) for key in keys if key.startswith(_RUNS))
    return sorted(name.removesuffix(_INDEX) for name in names if name.endswith(_INDEX))


class Run:
    """The keys of one run, over one connection.

    Args:
        link: the connection.
        run_id: names the run.
    """

    def __init__(self, link: Link, run_id: str) -> None:
        self._link = link
        self._base = f"{_RUNS}{run_id}/"
        # Every creation, in order, by key; and the names of other keys than nodes, each once.
        self._index = Tape(link, f"{_RUNS}{run_id}{_INDEX}")
        self._names = Tape(link, f"{self._base}names")
        self._events = Tape(link, f"{self._base}events")
        self.common_log = Tape(link, f"{self._base}common", _KEEP)
        self.nodes_log = Tape(link, f"{self._base}nodes", _KEEP)

    def store_id(self) -> str:
        """An id that lasts exactly as long as the memory of the store."""
        fresh = os.urandom(16).hex().encode()
        return self._link.swap(_STORE_ID, b"", fresh).decode(errors="replace")

    # ------------------------------------------------------------ reading

    def peek(self, key: str) -> Cell:
        """One cell."""
        return Cell.decode(self._link.peek(self._cell(key)))

    def cells(self, keys: Sequence[str]) -> dict[str, Cell]:
        """Cells of keys that were created once."""
        found: dict[str, Cell] = {}
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            try:
                values = self._link.read([self._cell(key) for key in batch])
            except NotThere:
                values = [self._link.peek(self._cell(key)) for key in batch]
            found.update((key, Cell.decode(raw)) for key, raw in zip(batch, values, strict=True))
        return found

    def common(self) -> list[str]:
        """All common keys, existing or not."""
        return self._all(self._names)

    def events(self) -> list[str]:
        """All keys of events, existing or not."""
        return self._all(self._events)

    def _all(self, tape: Tape) -> list[str]:
        entries = tape.read(1, tape.length())
        return list(dict.fromkeys(raw.decode(errors="replace") for raw in entries if raw))

    def nodes(self) -> dict[str, Cell]:
        """All nodes that exist."""
        first, last = self._first(), self._index.length()
        placed = self._placed(first, last)
        beginning = first
        for number in range(first, last + 1):
            key, cell = placed.get(number, ("", Cell()))
            ended = not cell.alive and cell.version > 0 and cell.created == number
            if key.startswith(NODES) and not ended:  # perhaps it is just being created
                break
            beginning = number + 1
        if beginning - first >= _WORTH:
            # Only a hint: two writers of it may overtake each other, both are right.
            place = f"{self._base}first"
            self._link.swap(place, self._link.peek(place), str(beginning).encode())
        return {
            key: cell
            for number, (key, cell) in placed.items()
            if cell.alive and cell.created == number and key.startswith(NODES)
        }

    def oldest(self, without: frozenset[str]) -> str:
        """The oldest node that is not passed over; "" if there is none."""
        start, last, size = self._first(), self._index.length(), _FEW
        while start <= last:
            placed = self._placed(start, min(start + size - 1, last))
            nodes = (
                (key, cell)
                for number, (key, cell) in placed.items()
                if cell.created == number and key.startswith(NODES)
            )
            if found := oldest(nodes, without):
                return found
            start, size = start + size, min(4 * size, _BATCH)
        return ""

    def counts(self, leases: Iterable[bytes]) -> dict[bytes, int]:
        """The heartbeat counters of leases."""
        wanted = list(leases)
        if not wanted:
            return {}
        try:
            values = self._link.read([self._beat(lease) for lease in wanted])
        except NotThere:
            return {lease: self._link.add(self._beat(lease), 0) for lease in wanted}
        return {
            lease: int(raw) if raw.isdigit() else 0
            for lease, raw in zip(wanted, values, strict=True)
        }

    # ------------------------------------------------------------ writing

    def beat(self, lease: bytes) -> None:
        """Moves the heartbeat counter of a lease."""
        self._link.add(self._beat(lease), 1)

    def perform(
        self,
        transaction: Transaction,
        take_lease: Callable[[Run, str], bytes],
        ttl: float,
    ) -> dict[str, Cell] | None:
        """Performs a transaction; the one write with a condition comes first.

        Args:
            transaction: what to do.
            take_lease: gives the lease to hang a key on.
            ttl: of that lease, in seconds.

        Returns:
            The cells that were written, None if a condition did not hold.
        """
        expects = {expect.key: expect.version for expect in transaction.expects}
        written = {put.key for put in transaction.puts} | set(transaction.deletes)
        for key, version in expects.items():
            if key not in written and self.peek(key).expected != version:
                return None
        cells: dict[str, Cell] = {}
        for put in sorted(transaction.puts, key=lambda put: put.key not in expects):
            lease = take_lease(self, put.key) if put.leased else b""
            cell = self.put(put.key, put.value, expects.get(put.key), lease, ttl)
            if cell is None:
                return None
            cells[put.key] = cell
        for key in sorted(transaction.deletes, key=lambda key: key not in expects):
            cell = self.remove(key, expects.get(key))
            if cell is None:
                return None
            cells[key] = cell
        return cells

    def put(
        self,
        key: str,
        value: bytes,
        expect: int | None = None,
        lease: bytes = b"",
        ttl: float = 0.0,
    ) -> Cell | None:
        """Writes a key.

        Args:
            key: the key.
            value: its new value.
            expect: the version that it must have; None: any.
            lease: id of the lease to hang it on; empty: none.
            ttl: of that lease, in seconds.

        Returns:
            The new cell, None if the version was another one.
        """
        while True:
            raw = self._link.peek(self._cell(key))
            cell = Cell.decode(raw)
            if expect is not None and cell.expected != expect:
                return None
            created = cell.created
            if not cell.alive:
                if not raw and not key.startswith(NODES):
                    names = self._events if key.startswith(EVENTS) else self._names
                    names.append(key.encode())
                created = self._index.append(key.encode())
            new = cell.written(value, created, lease, ttl)
            if self._swap(key, raw, new):
                return new
            if expect is not None:
                return None

    def remove(
        self, key: str, expect: int | None = None, lease: bytes | None = None
    ) -> Cell | None:
        """Removes a key.

        Args:
            key: the key.
            expect: the version that it must have; None: any.
            lease: the lease that it must hang on; None: any.

        Returns:
            The empty cell, also if there was none; None if a condition did not hold.
        """
        while True:
            raw = self._link.peek(self._cell(key))
            cell = Cell.decode(raw)
            if expect is not None and cell.expected != expect:
                return None
            if lease is not None and cell.lease != lease:
                return None
            if not cell.alive or self._swap(key, raw, cell.removed()):
                return cell if not cell.alive else cell.removed()
            if expect is not None:
                return None

    def announce(self, cells: Mapping[str, Cell], leads: bool = False) -> None:
        """Tells the others what was written.

        Args:
            cells: what was.
            leads: whether the writer is the leader, which all nodes follow.
        """
        nodes = [key for key in cells if key.startswith(NODES)]
        common = [key for key in cells if not key.startswith((NODES, EVENTS))]
        common += [key for key in nodes if leads or not cells[key].alive]
        if common:
            self.common_log.append("\n".join(common).encode())
        if nodes:
            self.nodes_log.append("\n".join(nodes).encode())

    # ------------------------------------------------------------ inside

    def _swap(self, key: str, raw: bytes, new: Cell) -> bool:
        encoded = new.encode(os.urandom(8))
        return self._link.swap(self._cell(key), raw, encoded) == encoded

    def _first(self) -> int:
        raw = self._link.peek(f"{self._base}first")
        return int(raw) if raw.isdigit() else 1

    def _placed(self, first: int, last: int) -> dict[int, tuple[str, Cell]]:
        entries = self._index.read(first, last)
        keys = {first + i: raw.decode(errors="replace") for i, raw in enumerate(entries) if raw}
        cells = self.cells([key for key in dict.fromkeys(keys.values()) if key.startswith(NODES)])
        return {number: (key, cells.get(key, Cell())) for number, key in keys.items()}

    def _cell(self, key: str) -> str:
        return f"{self._base}cell/{key}"

    def _beat(self, lease: bytes) -> str:
        return f"{self._base}beat/{lease.hex()}"
