"""The members of a large round, which lie in the store in parts: pure, but for the one who reads.

n nodes that each read a list of n members would read n² of them, and a list of 10,000 is larger
than what etcd takes in one request. So the record of a large round names its first members only,
and all of them are under ``group/<id>/``, in parts of some 32. Which part a node is in follows
from its uuid: a member reads that one, and knows its own rank. All parts are read by those who
need all members: the leader, who is not a member and wants to be, who looks for the others, and
the *keepers*, eight members spread over the ranks, who can give the round back to a store that
has lost its memory.

The id is a hash of what the parts say. So who writes them a second time changes nothing, two
leaders that write at the same time do not mix, and parts are there before the round that names
them is.
"""

from __future__ import annotations

import hashlib
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.errors import RecordError, StoreUnavailable
from elastic_runtime.protocol.records import GROUP, ROUND, GroupRecord, RoundRecord
from elastic_runtime.rendezvous.store import Changed, Entry, Put, Snapshot, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elastic_runtime.rendezvous.state import Layout

    Read = Callable[[str], Sequence[Entry]]

# So many parts are written at once: half a megabyte, of the 1.5 that etcd takes by default.
_AT_ONCE = 100
# A round whose members have not been there for so long is taken for unreadable (seconds).
PATIENCE = 3.0


def apart(last: RoundRecord, layout: Layout) -> tuple[RoundRecord, tuple[Transaction, ...]]:
    """A round as the store is to have it.

    Args:
        last: the round, with all its members.
        layout: how it is to lie there.

    Returns:
        Its record, and the writes that come before it.
    """
    if last.size <= layout.most:
        return last, ()
    firsts, first = [], 0
    for member in last.members:
        firsts.append(first)
        first += member.workers
    count = -(-last.size // layout.part)
    places: list[list[int]] = [[] for _ in range(count)]
    for place, member in enumerate(last.members):
        places[_part(member.node, count)].append(place)
    values = [
        GroupRecord(
            tuple(last.members[place] for place in some),
            tuple(some),
            tuple(firsts[place] for place in some),
        ).encode()
        for some in places
    ]
    group = hashlib.sha256(b"\n".join(values)).hexdigest()[:16]
    puts = [Put(key, value) for key, value in zip(_keys(group, count), values, strict=True)]
    head = replace(
        last,
        members=last.members[: layout.first],
        group=group,
        parts=count,
        nodes=last.size,
        workers=first,
        ranks=tuple(range(layout.first)),
        firsts=tuple(firsts[: layout.first]),
    )
    batches = (puts[at : at + _AT_ONCE] for at in range(0, len(puts), _AT_ONCE))
    return head, tuple(Transaction(puts=tuple(batch)) for batch in batches)


def keys(last: RoundRecord | None) -> tuple[str, ...]:
    """The keys of a round's parts."""
    return _keys(last.group, last.parts) if last is not None else ()


def joined(head: RoundRecord, parts: Iterable[GroupRecord]) -> RoundRecord:
    """The round with the members that these parts name, besides those that it names itself."""
    all_parts: list[RoundRecord | GroupRecord] = [head, *parts]
    known = {
        rank: (member, first)
        for part in all_parts
        for member, rank, first in zip(part.members, part.ranks, part.firsts, strict=True)
    }
    ranks = sorted(known)
    whole = len(ranks) == head.size
    return replace(
        head,
        members=tuple(known[rank][0] for rank in ranks),
        ranks=() if whole else tuple(ranks),
        firsts=() if whole else tuple(known[rank][1] for rank in ranks),
    )


def _needs_all(known: RoundRecord, node: str, keepers: int) -> bool:
    """Whether who knows its own part needs all of them."""
    rank = known.rank_of(node)
    return rank < 0 or rank % -(-known.size // keepers) == 0


def _of_round(event: Snapshot | Changed) -> Entry | None:
    """The round's record in an event of the store."""
    entries = event.entries if isinstance(event, Snapshot) else event.puts
    return next((entry for entry in entries if entry.key == ROUND), None)


def _with_round(event: Snapshot | Changed, entry: Entry | None) -> Snapshot | Changed:
    """The event with another record of the round; None: without it."""

    def changed(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        swapped = (entry if one.key == ROUND else one for one in entries)
        return tuple(one for one in swapped if one is not None)

    if isinstance(event, Snapshot):
        return replace(event, entries=changed(event.entries))
    return replace(event, puts=changed(event.puts))


class Completer:
    """Completes the rounds in what a store tells, before a node hears of it.

    Args:
        read: reads all entries under a prefix; may block, and raise ``StoreUnavailable``.
        keepers: as in ``Layout``.
    """

    def __init__(self, read: Read, keepers: int) -> None:
        self._read = read
        self._keepers = keepers
        self._told: Entry | None = None  # the round as the store told it last
        self._known: RoundRecord | None = None  # the last large round of which all is known
        self._missed_at: float | None = None  # when its parts were not there first
        self.owed = False

    def take(
        self, event: Snapshot | Changed, node: str, wide: bool, now: float
    ) -> Snapshot | Changed:
        """The event as the node is to hear it: without the round, if that is ``owed`` for now.

        Args:
            event: as the store told it.
            node: uuid of this node.
            wide: this node needs to know all members.
            now: seconds on the node's own monotonic clock.
        """
        entry = _of_round(event)
        if entry is None:
            if isinstance(event, Snapshot):
                self._told, self.owed = None, False
            return event
        self._told, self._missed_at = entry, None
        return _with_round(event, self._completed(node, wide, now))

    def again(self, node: str, wide: bool, now: float) -> Changed | None:
        """The round once more; None if it still cannot be completed.

        Args:
            node: uuid of this node.
            wide: with all its members.
            now: seconds on the node's own monotonic clock.
        """
        entry = self._completed(node, wide, now) if self._told is not None else None
        return Changed((entry,)) if entry is not None else None

    def _completed(self, node: str, wide: bool, now: float) -> Entry | None:
        """The round's record with the members that this node needs; None: they are not there."""
        assert self._told is not None
        try:
            head = RoundRecord.decode(ROUND, self._told.value)
        except RecordError:
            self.owed = False
            return self._told  # who reads it next says what is wrong with it
        entry: Entry | None = None
        try:
            full = self._read_members(head, node, wide)
            if full is not None:
                entry = replace(self._told, value=full.encode())
            elif self._lost(now):
                entry = replace(self._told, value=replace(head, parts=0).encode())  # unreadable
        except StoreUnavailable:
            pass
        self.owed = entry is None
        return entry

    def _lost(self, now: float) -> bool:
        """Whether the members have been missing for so long that they do not come any more.

        For a moment they may: the round after this one has been sealed, and is about to be told.
        """
        if self._missed_at is None:
            self._missed_at = now
        return now - self._missed_at > PATIENCE

    def _read_members(self, head: RoundRecord, node: str, wide: bool) -> RoundRecord | None:
        if head.whole:
            return head
        if self._known is not None and self._known.group == head.group:
            return replace(head, members=self._known.members, ranks=(), firsts=())
        if not wide:
            own = keys(head)[_part(node, head.parts)]
            some = joined(head, _decoded(self._read(own)))
            if not _needs_all(some, node, self._keepers):
                return some
        full = joined(head, _decoded(self._read(f"{GROUP}{head.group}/")))
        self._known = full if full.whole else self._known
        return full if full.whole else None


def _part(node: str, count: int) -> int:
    return zlib.crc32(node.encode()) % count


def _keys(group: str, count: int) -> tuple[str, ...]:
    return tuple(f"{GROUP}{group}/{part:05d}" for part in range(count))


def _decoded(entries: Iterable[Entry]) -> list[GroupRecord]:
    """The parts that can be read. One that cannot is as good as none."""
    parts = []
    for entry in entries:
        with suppress(RecordError):
            parts.append(GroupRecord.decode(entry.key, entry.value))
    return parts


def all_members(head: RoundRecord, entries: Iterable[Entry]) -> RoundRecord:
    """The round with all members that are among these entries."""
    if head.whole:
        return head
    wanted = set(keys(head))
    return joined(head, _decoded(entry for entry in entries if entry.key in wanted))
