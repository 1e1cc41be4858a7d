"""The members of a large round, which are stored in parts: pure.

n nodes that each read a list of n members would read n² of them, and a list of 10,000 is larger
than what etcd takes in one request. So the record of a large round names its first members only,
and all of them are under ``group/<id>/``, in parts of some 16. Which part a node is in follows
from its uuid: a member reads that one, and knows its own rank. All parts are read by nodes that
need all members: the leader, a node that wants to join, a node that probes all others, and the
*keepers*, eight members spread over the ranks, which can write the round into a store that has
lost its data.

The id is a hash of what the parts say. So a second write of them changes nothing, two leaders that
write at the same time do not mix, and parts are there before the round that names them is. Each
part ends with a hash of itself and of its key, so that a node that reads that one alone sees
whether it is undamaged; a damaged one counts as missing.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from elastic_runtime.errors import RecordError
from elastic_runtime.limits import MAX_FRUITLESS_ROUNDS
from elastic_runtime.protocol.records import GROUP
from elastic_runtime.protocol.round_records import GroupRecord, RoundRecord
from elastic_runtime.rendezvous.store_contract import (
    Put,
    StoreEntry,
    Transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elastic_runtime.protocol.round_records import Member
    from elastic_runtime.rendezvous.policy import Layout

    Read = Callable[[str], Sequence[StoreEntry]]

# Each node probes the members of so many parts, some 256; of a round in one piece, it probes all.
# So many of the parts are its own and those after it, in each round.
_AROUND, _NEXT = 16, 2
# So many parts are written at once: half a megabyte, of the 1.5 that etcd takes by default.
AT_ONCE = 100
# How a part ends: as JSON, and alike for all, so that no part is encoded again to be checked.
_FIELD, _DIGITS, _END = b',"digest":"', 16, b'"}'


def split_round(last: RoundRecord, layout: Layout) -> tuple[RoundRecord, tuple[Transaction, ...]]:
    """A round as the store is to have it.

    Args:
        last: the round, with all its members.
        layout: how it is to be stored.

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
        places[part_of(member.node, count)].append(place)
    values = [
        GroupRecord(
            tuple(last.members[place] for place in some),
            tuple(some),
            tuple(firsts[place] for place in some),
        ).encode()
        for some in places
    ]
    group = hashlib.sha256(b"\n".join(values)).hexdigest()[:16]
    signed = [_signed(key, value) for key, value in zip(_keys(group, count), values, strict=True)]
    puts = [Put(key, value) for key, value in zip(_keys(group, count), signed, strict=True)]
    full = replace(last, group=group, parts=count, nodes=last.size, workers=first)
    batches = (puts[at : at + AT_ONCE] for at in range(0, len(puts), AT_ONCE))
    return head_of(full, layout.first), tuple(Transaction(puts=tuple(some)) for some in batches)


def head_of(last: RoundRecord, first: int) -> RoundRecord:
    """The record of a round whose members are stored in parts, if its first members are known.

    Args:
        last: the round, with some of its members or all.
        first: as in ``Layout``.
    """
    if not last.group:
        return last
    ranks = last.ranks or range(last.size)
    named = [place for place, rank in enumerate(ranks) if rank < first]
    firsts = last.firsts or tuple(accumulate((m.workers for m in last.members), initial=0))
    return replace(
        last,
        members=tuple(last.members[place] for place in named),
        ranks=tuple(ranks[place] for place in named),
        firsts=tuple(firsts[place] for place in named),
    )


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


def probed_parts(last: RoundRecord, node: str) -> tuple[str, ...]:
    """The keys of the parts whose members a node probes, its own first.

    In which part a node is follows from its uuid, and so has nothing to do with where it is: these
    are a fair sample of the round. As members of neighbouring parts probe each other, all samples
    together connect all nodes that reach each other. The other parts change with every round, and
    their number doubles after each round without progress: a single pair that is cut is found
    before the job gives up.
    """
    parts, own = keys(last), part_of(node, last.parts)
    steps: Sequence[int] = range(len(parts))
    most = _AROUND << min(last.budget.fruitless, MAX_FRUITLESS_ROUNDS)
    if len(parts) > most:
        more, others = most - _NEXT, len(parts) - _NEXT
        turn = last.number * more
        steps = [*range(_NEXT), *(_NEXT + (turn + step) % others for step in range(more))]
    return tuple(parts[(own + step) % len(parts)] for step in steps)


def looked_for(last: RoundRecord) -> Callable[[str], Sequence[Member]]:
    """Which members of a round each node probes; all of them must be known."""
    if not last.group:
        return lambda node: last.members
    parts: dict[str, list[Member]] = {key: [] for key in keys(last)}
    names = tuple(parts)
    for member in last.members:
        parts[names[part_of(member.node, last.parts)]].append(member)
    return lambda node: [member for key in probed_parts(last, node) for member in parts[key]]


def part_of(node: str, count: int) -> int:
    return zlib.crc32(node.encode()) % count


def _keys(group: str, count: int) -> tuple[str, ...]:
    return tuple(f"{GROUP}{group}/{part:05d}" for part in range(count))


def _signed(key: str, value: bytes) -> bytes:
    """A part as it is written: with a hash of its key and of what it says, as its last field."""
    digest = hashlib.sha256(key.encode() + b"\n" + value).hexdigest()[:_DIGITS]
    return b"%s%s%s%s" % (value[:-1], _FIELD, digest.encode(), _END)


def intact(entry: StoreEntry) -> bool:
    """Whether this part is undamaged."""
    end = len(_FIELD) + _DIGITS + len(_END)
    return _signed(entry.key, entry.value[:-end] + b"}") == entry.value


def decoded(
    entries: Iterable[StoreEntry], wrong: dict[str, str] | None = None
) -> list[GroupRecord]:
    """The parts that can be read. One that cannot is as good as none, and noted in ``wrong``."""
    parts = []
    for entry in entries:
        try:
            parts.append(GroupRecord.decode(entry.key, entry.value))
            if not intact(entry):
                parts.pop()
                raise RecordError(entry.key, "its hash is that of something else")
        except RecordError as error:
            if wrong is not None:
                wrong[error.key] = error.why
    return parts


def all_members(head: RoundRecord, entries: Iterable[StoreEntry]) -> RoundRecord:
    """The round with all members that are among these entries."""
    if head.whole:
        return head
    wanted = set(keys(head))
    return joined(head, decoded(entry for entry in entries if entry.key in wanted))
