"""The messages between nodes and the host of an embedded store.

A client begins with ``PREFACE``; then both sides send frames: four bytes of length (big-endian),
and that much JSON, one object. Values are bytes: as JSON text each byte is the character with its
number (Latin-1), which leaves the ASCII of records as it is.

::

    client ──▶ host    hello: protocol and release; run, session, lease; which keys it follows;
                       its id as a voter, and which hosts it knows (see ``host_succession``)
    host   ──▶ client  welcome: the store's id and term, whether the session still has its lease;
                       or moved (where the host is; "": unknown), or refused (why), and closes
                       the connection. A candidate sends ticks until it is elected
    client ──▶ host    apply, read, runs, beat, bye: each with an ``id``; follow and look without;
                       part: it closes this connection, but its process continues
    host   ──▶ client  the answer to an ``id``; events, in their order; ticks, some with the voters
    client ──▶ host    the echo of a tick: a promise

A session outlasts its connection until its lease ends, so a client that connects again keeps its
keys; what it has missed it gets as a ``StoreSnapshot``. Each frame is checked before it is used;
one that is wrong raises ``WireError`` and nothing else.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_runtime.rendezvous.store_contract import (
    Changed,
    Expect,
    Found,
    LeaseLost,
    Lost,
    Put,
    StoreEntry,
    StoreSnapshot,
    Transaction,
)
from elastic_runtime.rendezvous.stores.embedded.host_succession import Voter, Voters

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from elastic_runtime.rendezvous.store_contract import StoreEvent

# The first bytes of a client: no torch client, browser or scanner sends them.
PREFACE = b"elastic-runtime store\n"
# The version of these frames. A client of another version is refused with both versions.
STORE_PROTOCOL = 1
# Bytes of a frame. A snapshot of all keys of 10,000 nodes has 5 MB; their round lies in parts.
MAX_FRAME = 32 * 2**20
# Bytes of a client's first frame, which any process can send. It has the keys of dead nodes.
MOST_HELLO = 2**20

_LENGTH = struct.Struct(">I")
_T = TypeVar("_T")

Message = dict[str, Any]


class WireError(Exception):
    """What was received is no frame of this protocol."""


def frame(message: Message) -> bytes:
    """One object as bytes."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, most: int = MAX_FRAME) -> Message:
    """The next object.

    Args:
        reader: the connection.
        most: bytes that it may have.

    Raises:
        WireError: it is no object, or larger than ``most``.
        OSError, EOFError: the connection has ended.
    """
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if size > most:
        raise WireError(f"a frame of {size} bytes")
    try:
        message = json.loads(await reader.readexactly(size))
    except (ValueError, RecursionError) as error:
        raise WireError(f"a frame that is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("a frame that is no object")
    return message


def field(message: Message, name: str, kind: type[_T]) -> _T:
    """A field of an object, which must have exactly this type.

    Raises:
        WireError: it is missing, or of another type.
    """
    return _of(message.get(name), kind, name)


def strings(message: Message, name: str) -> list[str]:
    """A field that is a list of strings."""
    return [_of(one, str, name) for one in field(message, name, list)]


def _of(value: object, kind: type[_T], name: str) -> _T:
    if kind is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            raise WireError(f"{name!r} is a number that is too large") from None
    if type(value) is not kind:
        raise WireError(f"{name!r} is {type(value).__name__}, not {kind.__name__}")
    return value


def _row(value: object, kinds: tuple[type, ...], name: str) -> list[Any]:
    if type(value) is not list or tuple(type(one) for one in value) != kinds:
        raise WireError(f"{name!r} has a wrong row")
    return value


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise WireError("a value that is no bytes") from None


# ---------------------------------------------------------------- voters


def of_voters(voters: Voters) -> Message:
    """A list of voters as a message."""
    now = [[one.id, one.where] for one in voters.now]
    return {"version": voters.version, "now": now, "before": sorted(voters.before)}


def to_voters(message: object) -> Voters:
    """A list of voters from a message.

    Raises:
        WireError: it is none.
    """
    given = _of(message, dict, "voters")
    now = tuple(to_voter(one) for one in field(given, "now", list))
    return Voters(field(given, "version", int), now, frozenset(strings(given, "before")))


def to_voter(row: object) -> Voter:
    """A voter from its id and address.

    Raises:
        WireError: it is none.
    """
    id, where = _row(row, (str, str), "voter")
    return Voter(id, where)


# ---------------------------------------------------------------- entries, transactions, events

_ENTRY = (str, str, int, int)


def of_entries(entries: Iterable[StoreEntry]) -> list[list[Any]]:
    """Entries as rows."""
    return [[one.key, _text(one.value), one.created, one.version] for one in entries]


def to_entries(message: Message, name: str) -> tuple[StoreEntry, ...]:
    """Entries from rows."""
    rows = [_row(one, _ENTRY, name) for one in field(message, name, list)]
    return tuple(StoreEntry(key, _bytes(value), *numbers) for key, value, *numbers in rows)


def of_transaction(transaction: Transaction) -> Message:
    """A transaction as the fields of a message."""
    return {
        "expects": [[one.key, one.version] for one in transaction.expects],
        "puts": [[one.key, _text(one.value), one.leased] for one in transaction.puts],
        "deletes": list(transaction.deletes),
    }


def to_transaction(message: Message) -> Transaction:
    """A transaction from the fields of a message.

    Raises:
        WireError: there is none in it.
    """
    expects = [_row(one, (str, int), "expects") for one in field(message, "expects", list)]
    puts = [_row(one, (str, str, bool), "puts") for one in field(message, "puts", list)]
    try:
        return Transaction(
            tuple(Expect(key, version) for key, version in expects),
            tuple(Put(key, _bytes(value), leased) for key, value, leased in puts),
            tuple(strings(message, "deletes")),
        )
    except ValueError as error:
        raise WireError(str(error)) from None


def of_event(event: StoreEvent) -> Message:
    """An event as a message."""
    match event:
        case StoreSnapshot(entries, wide):
            return {"event": "snapshot", "entries": of_entries(entries), "wide": wide}
        case Changed(puts, deletes):
            return {"event": "changed", "puts": of_entries(puts), "deletes": list(deletes)}
        case Lost(why):
            return {"event": "lost", "why": why}
        case Found():
            return {"event": "found"}
        case LeaseLost():
            return {"event": "lease lost"}
    raise AssertionError(f"a host tells of no {event}")


def to_event(message: Message) -> StoreEvent:
    """An event from a message.

    Raises:
        WireError: it is none that a host tells of.
    """
    match message.get("event"):
        case "snapshot":
            return StoreSnapshot(to_entries(message, "entries"), field(message, "wide", bool))
        case "changed":
            return Changed(to_entries(message, "puts"), tuple(strings(message, "deletes")))
        case "lost":
            return Lost(field(message, "why", str))
        case "found":
            return Found()
        case "lease lost":
            return LeaseLost()
    raise WireError(f"an event {message.get('event')!r}")
