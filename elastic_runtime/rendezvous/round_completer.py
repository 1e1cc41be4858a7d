"""Reads the members of large rounds, which are stored in parts (see ``core.round_parts``)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.backoff import Backoff
from elastic_runtime.clock import NEVER
from elastic_runtime.errors import RecordError, StoreUnavailable
from elastic_runtime.limits import MISSING_MEMBERS_TIMEOUT
from elastic_runtime.protocol.records import GROUP, ROUND
from elastic_runtime.protocol.round_records import GroupRecord, RoundRecord
from elastic_runtime.rendezvous.core.membership_events import PartsGone, PartsSeen, SampleKnown
from elastic_runtime.rendezvous.core.round_parts import (
    all_members,
    decoded,
    intact,
    joined,
    keys,
    part_of,
    probed_parts,
)
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    Found,
    Lost,
    StoreEntry,
    StoreSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elastic_runtime.rendezvous.core.membership_events import Event
    from elastic_runtime.rendezvous.store_contract import Transaction

    Read = Callable[[str], Sequence[StoreEntry]]

# From one try to read them to the next (seconds).
_PAUSES = Backoff(first=0.05, longest=1.0)


def parts_seen(read: Read, version: int) -> PartsSeen | None:
    """Which parts of rounds are in the store; None: it does not answer.

    Args:
        read: reads all entries under a prefix; may block, and raise ``StoreUnavailable``.
        version: as in ``ListParts``.
    """
    try:
        entries = read(GROUP)
    except StoreUnavailable:
        return None
    there = frozenset(entry.key for entry in entries)
    fine = frozenset(entry.key for entry in entries if intact(entry))
    return PartsSeen(version, fine, there - fine)


def _needs_all(known: RoundRecord, node: str, keepers: int) -> bool:
    """Whether this node needs all parts, and not only its own: a keeper, or no member."""
    rank = known.rank_of(node)
    return rank < 0 or rank % -(-known.size // keepers) == 0


def _of_round(event: object) -> StoreEntry | None:
    """The round's record in an event of the store, if there is one."""
    entries: Iterable[StoreEntry] = ()
    if isinstance(event, StoreSnapshot):
        entries = event.entries
    elif isinstance(event, Changed):
        entries = event.puts
    return next((entry for entry in entries if entry.key == ROUND), None)


class RoundCompleter:
    """Completes the rounds in a store's events, before the node gets these.

    An event that cannot be completed yet is delayed, and all later ones with it: to learn of a
    round late does no harm, and to learn that there is none would.

    Args:
        read: reads all entries under a prefix; may block, and raise ``StoreUnavailable``.
        keepers: as in ``Layout``.

    Attributes:
        wanted: the node has asked to be shown the round once more, with all its members.
    """

    def __init__(self, read: Read, keepers: int) -> None:
        self.wanted = False
        self._sample_wanted = False  # ..., or with those only that it is to probe
        self._due = NEVER
        self._served = False  # the store answers; without contact it is not asked
        self._read = read
        self._keepers = keepers
        self._delayed: list[Event] = []
        self._entry: StoreEntry | None = None  # the round's record as the store showed it last
        self._read_last: tuple[bytes, RoundRecord | None] = (b"", None)  # see _head
        self._shown: tuple[StoreEntry, str, RoundRecord] | None = (
            None  # ..., for which node, completed
        )
        self._known: RoundRecord | None = None  # the last large round of which all is known,
        self._seen_at: int | None = None  # and the version of its record when its parts were there
        self._missed_at: float | None = None  # when parts were not there first
        self._failures = 0  # in a row, to read them
        self._wrong: dict[str, str] = {}  # damaged parts, and why

    @property
    def owed(self) -> bool:
        """Whether events are delayed."""
        return bool(self._delayed)

    @property
    def due(self) -> float:
        """When to try again, while events are delayed or members wanted, and there is contact."""
        return self._due if self._served else NEVER

    def take(self, events: Iterable[Event], node: str, wide: bool, now: float) -> list[Event]:
        """The events that the node is to get now.

        Args:
            events: what has happened, in order.
            node: uuid of this node.
            wide: it needs to know all members, as a leader does.
            now: seconds on the node's own monotonic clock.
        """
        before, events = len(self._delayed), [*self._delayed, *events]
        for event in events[before:]:
            if isinstance(event, StoreSnapshot | Changed | Found | Lost):
                self._served = not isinstance(event, Lost)
            if isinstance(event, StoreSnapshot):
                wide = event.wide
            if isinstance(event, StoreSnapshot) or (
                isinstance(event, Changed) and ROUND in event.deletes
            ):
                self._entry = None
            if (entry := _of_round(event)) is not None:
                self._entry, self._missed_at, self._due = entry, None, now
        asked = [event for event in events if self._head(_of_round(event)) is not None]
        if not asked and not self.wanted and not self._sample_wanted:
            self._delayed, self._due = [], NEVER
            return events
        completed, gone = None, False
        if self._head(self._entry) is not None:
            if now < self.due:
                return self._hold(events)
            completed = self._completed(node, wide, now)
            if completed is None and not self._lost(now):
                self._failures += 1
                self._due = now + _PAUSES.random_pause(self._failures)
                return self._hold(events)
            if completed is None:
                completed, gone = self._as_known(node), True
        self._delayed, self._due, self._failures = [], NEVER, 0
        shown = [_with_round(event, completed) if event in asked else event for event in events]
        if (self.wanted or self._sample_wanted) and completed is not None:
            shown.append(Changed((completed,)))
        if self._sample_wanted and completed is not None and not gone:
            shown.append(SampleKnown(RoundRecord.decode(ROUND, completed.value).group))
        if gone and completed is not None:
            shown.append(PartsGone(completed.version, dict(self._wrong)))
        self.wanted = self._sample_wanted = False
        return shown

    def ask(self, now: float, sample: bool = False) -> None:
        """The node asks to be shown the round once more, with all its members.

        Args:
            now: seconds on the node's own monotonic clock.
            sample: it needs only those that it is to probe.
        """
        self._due = min(self._due, now)
        self.wanted, self._sample_wanted = self.wanted or not sample, self._sample_wanted or sample

    def wrote(self, transactions: Iterable[Transaction]) -> None:
        """This node has sealed a round: it knows all its members."""
        puts = [put for one in transactions for put in one.puts]
        head = next((put for put in puts if put.key == ROUND), None)
        if head is not None:
            parts = [StoreEntry(put.key, put.value, 0, 0) for put in puts]
            full = all_members(RoundRecord.decode(ROUND, head.value), parts)
            if full.group and full.whole:
                self._known, self._seen_at = full, None

    def _head(self, entry: StoreEntry | None) -> RoundRecord | None:
        """The record of a round whose members are stored in parts; None: it is none.

        It is needed several times for each round, and kept: to decode it costs a member the most.
        """
        if entry is None:
            return None
        value, head = self._read_last
        if value != entry.value:
            head = None
            with suppress(RecordError):  # its next reader reports what is wrong with it
                last = RoundRecord.decode(entry.key, entry.value)
                head = None if last.whole else last
            self._read_last = (entry.value, head)
        return head

    def _with_sample(self, some: RoundRecord, node: str) -> RoundRecord | None:
        """The round with those that this node is to probe; None: some parts are missing."""
        near = probed_parts(some, node)
        found = decoded([entry for key in near for entry in self._read(key)], self._wrong)
        return joined(some, found) if len(found) == len(near) else None

    def _hold(self, events: list[Event]) -> list[Event]:
        of_store = [isinstance(event, StoreSnapshot | Changed) for event in events]
        self._delayed = [
            event for event, by_store in zip(events, of_store, strict=True) if by_store
        ]
        return [event for event, by_store in zip(events, of_store, strict=True) if not by_store]

    def _completed(self, node: str, wide: bool, now: float) -> StoreEntry | None:
        """The round's record with the members that this node needs; None: they are not there."""
        head = self._head(self._entry)
        assert self._entry is not None and head is not None
        whole = wide or self.wanted
        if self._shown is not None:
            entry, uuid, full = self._shown
            if (entry, uuid) == (self._entry, node) and (
                full.whole or not (whole or self._sample_wanted)
            ):
                return replace(entry, value=full.encode())
        self._wrong.clear()
        try:
            found = self._read_members(head, node, whole)
        except StoreUnavailable:
            return None
        if found is None:
            self._missed_at = now if self._missed_at is None else self._missed_at
            return None
        self._shown = (self._entry, node, found)
        return replace(self._entry, value=found.encode())

    def _lost(self, now: float) -> bool:
        """Whether the members have been missing for so long that they will not come.

        For a moment they may: the round after this one has been sealed, and its event is on its
        way. A node that knows the members all the same can write them again, and does not wait.
        """
        head = self._head(self._entry)
        if self._missed_at is None or head is None:
            return False
        ours = self._known is not None and self._known.group == head.group
        return ours or now - self._missed_at > MISSING_MEMBERS_TIMEOUT

    def _as_known(self, node: str) -> StoreEntry:
        """The round's record with the members that this node knew before they were gone."""
        head = self._head(self._entry)
        assert self._entry is not None and head is not None
        before = [self._known] if self._known else []
        if self._shown is not None and self._shown[1] == node:
            before.append(self._shown[2])
        known = next((one for one in before if one.group == head.group), head)
        head = replace(head, members=known.members, ranks=known.ranks, firsts=known.firsts)
        return replace(self._entry, value=head.encode())

    def _read_members(self, head: RoundRecord, node: str, whole: bool) -> RoundRecord | None:
        assert self._entry is not None
        known = self._known if self._known and self._known.group == head.group else None
        if known is not None and self._seen_at in (None, self._entry.version):
            self._seen_at = self._entry.version
            return replace(head, members=known.members, ranks=(), firsts=())
        if not whole:
            own = keys(head)[part_of(node, head.parts)]
            parts = decoded(self._read(own), self._wrong)
            some = joined(head, (_only(part, node) for part in parts))
            if self._sample_wanted:
                return self._with_sample(some, node)
            if not _needs_all(some, node, self._keepers):
                return some
        full = joined(head, decoded(self._read(f"{GROUP}{head.group}/"), self._wrong))
        if not full.whole:
            return None
        self._known, self._seen_at = full, self._entry.version
        return full


def _with_round(event: Event, entry: StoreEntry | None) -> Event:
    """The event of a store with another record of the round; None: without it."""

    def changed(entries: tuple[StoreEntry, ...]) -> tuple[StoreEntry, ...]:
        swapped = (entry if one.key == ROUND else one for one in entries)
        return tuple(one for one in swapped if one is not None)

    if isinstance(event, StoreSnapshot):
        return replace(event, entries=changed(event.entries))
    assert isinstance(event, Changed)
    return replace(event, puts=changed(event.puts))


def _only(part: GroupRecord, node: str) -> GroupRecord:
    """What a part says of one node."""
    at = [place for place, member in enumerate(part.members) if member.node == node]
    return GroupRecord(
        tuple(part.members[place] for place in at),
        tuple(part.ranks[place] for place in at),
        tuple(part.firsts[place] for place in at),
    )
