"""What is kept in the store, as versioned JSON. Nothing here is ever unpickled or executed.

Every record is a frozen dataclass with ``encode()`` and a ``decode(key, data)`` that raises
``RecordError`` with the key for anything that is not exactly what it should be. Unknown fields
are ignored, so that a newer member of a job may say more than an older one understands; a newer
``v`` is refused.

Keys, all under ``<prefix>/<run id>/``::

    job                 JobRecord       what the job is
    nodes/<uuid>        NodeRecord      one life of one agent (leased)
    round               RoundRecord     the one agreed membership
    group/<id>/<part>   GroupRecord     the members of a large round, in parts
    switch              SwitchRecord    "leave round n now": it broke, or a change is planned
    outcome             OutcomeRecord   the end
    events/<rank>-<n>   EventRecord     the last events, for ``elasticctl``
"""

from __future__ import annotations

import functools
import json
import types
import typing
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from elastic_runtime.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Records are read up to this version. Each is written with the lowest one that can say it.
FORMAT = 2

JOB = "job"
ROUND = "round"
SWITCH = "switch"
OUTCOME = "outcome"
NODES = "nodes/"
EVENTS = "events/"
GROUP = "group/"
# Each place in the job has so many slots for events, which are written over in turn.
EVENT_SLOTS = 8

# Statuses of a node. Whether it is a member, a joiner or a spare follows from the round.
IN = "in"
DRAINING = "draining"
DONE = "done"
GONE = "gone"

# Kinds of a fault, from the most to the least telling about the cause.
FAILED = "failed"  # user code: an exception, a non-zero exit, a crash of its own
KILLED = "killed"  # a worker was killed from outside
LOST = "lost"  # the whole node went away
START = "start"  # a worker could not be started: a taken port, no memory for a fork
ASKED = "asked"  # the node was asked to leave
PLANNED = "planned"  # nothing broke here: the membership changes

# Signatures of reports that say something about the round, and nothing about the script.
HANGS = "hang"  # all wait for each other
CUT_OFF = "cut off"  # some members do not reach each other
NO_ROOM = "no room"  # the machine refuses to start a worker


def called(name: str) -> str:
    """How a sentence names a node: ``node b``, but ``node2`` and not ``node node2``."""
    return name if name.startswith("node") else f"node {name}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """How a sentence names several nodes: those of 10,000 would fill a book."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def node_key(node: str) -> str:
    """The key of the node with this uuid."""
    return NODES + node


def event_key(group_rank: int, count: int) -> str:
    """Where a node keeps an event.

    Slots belong to ranks, not to names: a job whose nodes come with ever new names (as pods do)
    leaves no more keys behind than it ever had nodes at a time.

    Args:
        group_rank: of the node in its last round; below 0: it was in none, as all newcomers.
        count: how many events it has told so far.
    """
    place = str(group_rank) if group_rank >= 0 else "new"
    return f"{EVENTS}{place}-{count % EVENT_SLOTS}"


@dataclass(frozen=True, slots=True)
class Record:
    """The JSON form that all records share."""

    kind: ClassVar[str] = "record"

    @property
    def version(self) -> int:
        """The lowest version of the format that can say what this record says."""
        return 1

    def encode(self) -> bytes:
        """Compact JSON with the format's version and the record's kind."""
        body = {"v": self.version, "kind": self.kind, **_plain(self)}
        return json.dumps(body, separators=(",", ":")).encode()

    def check(self) -> None:
        """Raises ``ValueError`` for values that no program of ours would write."""

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Reads what ``encode`` wrote.

        Args:
            key: where the bytes were found, for the error.
            data: the bytes.

        Raises:
            RecordError: not JSON, of another kind, of a newer version, or a field is wrong.
        """
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RecordError(key, f"it is not JSON ({error})") from None
        if not isinstance(body, dict) or body.get("kind") != cls.kind:
            raise RecordError(key, f"it is not a {cls.kind} record")
        version = body.get("v")
        if not isinstance(version, int) or version > FORMAT:
            raise RecordError(key, f"its format is {version!r}, this program reads up to {FORMAT}")
        try:
            record = _build(cls, body)
            record.check()
            return record
        except (TypeError, ValueError, OverflowError) as error:
            raise RecordError(key, str(error)) from None


# What JSON says as it is.
_PLAIN = frozenset({str, int, float, bool, type(None)})


def _plain(record: Any) -> dict[str, Any]:
    return {name: _plain_value(getattr(record, name)) for name, _, _ in _readers(type(record))}  # type: ignore[arg-type]


def _plain_value(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return _plain(value) if is_dataclass(value) else value


_D = TypeVar("_D")


@cache
def _readers(cls: type) -> tuple[tuple[str, Any, Callable[[str, Any], Any]], ...]:
    """Each field of a dataclass: its name, its type, and what reads a value that is not plain."""
    hints = typing.get_type_hints(cls)
    return tuple((f.name, hints[f.name], _reader(hints[f.name])) for f in fields(cls) if f.init)


def _build(cls: type[_D], body: dict[str, Any]) -> _D:
    known = {}
    for name, hint, read in _readers(cls):  # type: ignore[arg-type]
        if name in body:
            value = body[name]
            known[name] = value if type(value) is hint else read(name, value)
    if not _required(cls) <= known.keys():  # type: ignore[arg-type]
        missing = [f.name for f in fields(cls) if f.name in _required(cls) - known.keys()]  # type: ignore[arg-type]
        raise ValueError(f"it lacks {', '.join(missing)}")
    return cls(**known)


@cache
def _required(cls: type) -> frozenset[str]:
    return frozenset(
        one.name
        for one in fields(cls)
        if one.init and one.default is MISSING and one.default_factory is MISSING
    )


@cache
def _reader(hint: Any) -> Callable[[str, Any], Any]:
    """What makes a value of this type of what JSON has for it; raises ``TypeError`` if it is none.

    It is found out once for each type: a round is read by each of its nodes, at the same time.
    """
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        (given,) = (_reader(arg) for arg in typing.get_args(hint) if arg is not type(None))
        return lambda name, value: None if value is None else given(name, value)
    if origin is tuple:
        (kind,) = (arg for arg in typing.get_args(hint) if arg is not Ellipsis)
        return functools.partial(_read_tuple, kind, _reader(kind))
    if is_dataclass(hint):
        return functools.partial(_read_object, typing.cast("type", hint))
    return functools.partial(_read_plain, hint)


def _read_tuple(
    kind: Any, read: Callable[[str, Any], Any], name: str, value: Any
) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{name} is not a list")
    return tuple(one if type(one) is kind else read(name, one) for one in value)


def _read_object(cls: type[_D], name: str, value: Any) -> _D:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is not an object")
    return _build(cls, value)


def _read_plain(hint: Any, name: str, value: Any) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise TypeError(f"{name} is {type(value).__name__}, not {hint.__name__}")
    return value


@dataclass(frozen=True, slots=True)
class FaultReport:
    """Why a node's workers stopped before they were through.

    Attributes:
        round: the round in which it happened.
        kind: ``failed``, ``killed``, ``lost``, ``start``, ``asked`` or ``planned``.
        reason: one line for people.
        rank: global rank of the first worker that failed, -1 if none did.
        exit_code: its exit code, negative for a signal, 0 if unknown.
        signature: what makes two failures "the same": the error's type and normalised text.
        traceback: the worker's traceback, cut to a few kilobytes.
        step: the highest step this node's workers had reported; -1 if they report none.
        lifetime: seconds that the workers had run.
        consequence: the error only says that a peer went away.
    """

    round: int
    kind: str
    reason: str = ""
    rank: int = -1
    exit_code: int = 0
    signature: str = ""
    traceback: str = ""
    step: int = -1
    lifetime: float = 0.0
    consequence: bool = False


@dataclass(frozen=True, slots=True)
class JobRecord(Record):
    """What the job is. Launch bounds and present bounds are apart: a scale changes only the latter.

    Attributes:
        incarnation: uuid of this life of the job.
        min_nodes, max_nodes: the bounds in force, in nodes.
        launch_min, launch_max: the bounds that the nodes were started with.
        node_unit: the world is a multiple of this many nodes.
        entry: the script or module, for people and for the conflict check.
        in_place: survivors keep their processes.
        first_round: the number below the first round of this incarnation; numbers never repeat.
        settings: fingerprint of the launch settings; a node with another one is of another job.
        secret: with which its nodes prove themselves to each other (``protocol.proof``), the same
            in all lives of the job; "" in the record of a version that knew none.
        invocation: the command that has started the node which began this life; "": that alone. Its
            nodes do not begin another life when this one has an outcome.
        protocol: of what its nodes say to each other (``config.PROTOCOL``), a part of ``settings``;
            "" in the record of a version that did not write it down.
        release: the version of this package that began this life, for people; or "" as well.
    """

    kind: ClassVar[str] = "job"

    incarnation: str
    min_nodes: int
    max_nodes: int
    launch_min: int
    launch_max: int
    node_unit: int = 1
    entry: str = ""
    in_place: bool = False
    first_round: int = 0
    settings: str = ""
    secret: str = field(default="", repr=False)
    invocation: str = ""
    protocol: str = ""
    release: str = ""

    def check(self) -> None:
        """Bounds are bounds."""
        if not 1 <= self.min_nodes <= self.max_nodes or self.node_unit < 1 or self.first_round < 0:
            raise ValueError("its bounds are impossible")


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """One life of one agent.

    Attributes:
        node: uuid of this life. A node that comes back comes back as another.
        name: for people.
        address: where other nodes reach this one.
        workers: how many workers it can take into a round now; in place, 0 while none is ready.
        probe_port: where it answers probes.
        store_port: where it would host the next round's TCPStore; 0: it cannot.
        settings: fingerprint of the launch settings, compared with the leader's.
        status: ``in``, ``draining``, ``done`` or ``gone``.
        incarnation: the job's life that ``left`` and ``done_round`` belong to.
        left: the last round whose workers have all ended here.
        rank: the node's group rank in that round; -1: none, or it did not say so.
        done_round: the round in which this node's workers ended well; 0: none.
        step: the highest step committed, written at changes only; -1: none reported.
        fault: why round ``left`` was left.
        life: which life under this name it is; those with lower numbers are over. 0: unnumbered.
        checked: the last round whose members it has looked for; 0: none.
        unreachable: the nodes that it does not reach, by uuid, as far as it has looked.
    """

    kind: ClassVar[str] = "node"

    node: str
    name: str
    address: str
    workers: int
    probe_port: int = 0
    store_port: int = 0
    settings: str = ""
    status: str = IN
    incarnation: str = ""
    left: int = 0
    done_round: int = 0
    step: int = -1
    fault: FaultReport | None = None
    life: int = 0
    checked: int = 0
    unreachable: tuple[str, ...] = ()
    rank: int = -1


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a round; its place in the list is its group rank.

    ``workers`` is how many take part; ``store_port`` is where it would host a later round's store;
    ``life`` is as in ``NodeRecord``.
    """

    node: str
    name: str
    address: str
    workers: int
    probe_port: int = 0
    store_port: int = 0
    life: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """What the job has used of its patience, carried from round to round.

    Attributes:
        failures: failures of user code so far.
        fruitless: rounds in a row, of any class of fault, without progress.
        best_step: the highest step ever reported; -1: none.
        signature: the signature of the last failure.
        longest: the longest worker lifetime so far, in seconds, for scripts that report no steps.
        killed, lost, planned: rounds that ended so; they cost nothing and are only shown.
    """

    failures: int = 0
    fruitless: int = 0
    best_step: int = -1
    signature: str = ""
    longest: float = 0.0
    killed: int = 0
    lost: int = 0
    planned: int = 0

    @property
    def restarts(self) -> dict[str, int]:
        """How many rounds have come to their end, by what ended them."""
        return {
            "failed": self.failures,
            "killed": self.killed,
            "lost": self.lost,
            "planned": self.planned,
        }


@dataclass(frozen=True, slots=True)
class RoundRecord(Record):
    """One agreed membership.

    The store has a small round in one record. Of a large one it has the first members here, and
    all of them in parts under ``group`` (see ``rendezvous.group``): n nodes that each read n
    members would read n² of them. So a node may know only some of the members, itself among them
    if it is one.

    Attributes:
        number: grows by one with every round of the job, over all its incarnations.
        incarnation: the life of the job that it belongs to.
        members: the nodes in rank order, as far as they are known.
        store_port: port of the round's TCPStore on the first member's address.
        reason: why it was formed, for people.
        budget: the job's budget when it was sealed.
        sealed_by: uuid of the leader that wrote it.
        survivors: how many members, the first ones, were in the round before.
        group: where all members are, if they are not here: what follows ``group/``.
        parts: in how many parts.
        nodes: how many members there are; 0: as many as are known.
        workers: how many workers they have; 0: as many as those that are known.
        ranks: group ranks of the known members; none: their places in the list.
        firsts: the global rank of the first worker of each known member, if ``ranks`` are given.
    """

    kind: ClassVar[str] = "round"

    number: int
    incarnation: str
    members: tuple[Member, ...]
    store_port: int
    reason: str
    budget: Budget = field(default_factory=Budget)
    sealed_by: str = ""
    survivors: int = 0
    group: str = ""
    parts: int = 0
    nodes: int = 0
    workers: int = 0
    ranks: tuple[int, ...] = ()
    firsts: tuple[int, ...] = ()
    _places: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        places = {member.node: place for place, member in enumerate(self.members)}
        object.__setattr__(self, "_places", places)

    @property
    def version(self) -> int:
        """Who does not know of parts would take the first members for all."""
        return 2 if self.group else 1

    def check(self) -> None:
        """A round has a number and members, each once."""
        idle = any(member.workers < 1 for member in self.members)
        if self.number < 1 or not self._places or len(self._places) < len(self.members) or idle:
            raise ValueError("its number or its members are impossible")
        apart = len(self.ranks) == len(self.firsts) == len(self.members)
        if self.group and self.parts < 1:
            raise ValueError("its members are not in the store")
        if (self.ranks or self.firsts) and not (apart and max(self.ranks) < self.nodes):
            raise ValueError("its ranks are impossible")

    @property
    def whole(self) -> bool:
        """Whether all members are known."""
        return len(self.members) >= self.nodes

    @property
    def size(self) -> int:
        """How many members the round has."""
        return self.nodes or len(self.members)

    @property
    def world_size(self) -> int:
        """How many workers the round has."""
        return self.workers or sum(member.workers for member in self.members)

    @property
    def identity(self) -> tuple[object, ...]:
        """Alike for what two nodes know of one round, however much that is."""
        return self.number, self.incarnation, self.store_port, self.group or self.members

    def rank_of(self, node: str) -> int:
        """The group rank of a node, -1 if it is not known to be a member."""
        place = self._places.get(node, -1)
        return self.ranks[place] if self.ranks and place >= 0 else place

    def member(self, group_rank: int) -> Member:
        """The member with this group rank.

        Raises:
            LookupError: there is none, or this node does not know of it.
        """
        return self.members[self._place(group_rank)]

    def first_worker(self, group_rank: int) -> int:
        """The global rank of the first worker of the member with this group rank.

        Raises:
            LookupError: this node does not know of that member.
        """
        if self.ranks:
            return self.firsts[self._place(group_rank)]
        return sum(member.workers for member in self.members[:group_rank])

    def _place(self, group_rank: int) -> int:
        if not self.ranks:
            return group_rank
        if group_rank not in self.ranks:
            raise LookupError(f"round {self.number}: group rank {group_rank} is not known here")
        return self.ranks.index(group_rank)


@dataclass(frozen=True, slots=True)
class GroupRecord(Record):
    """Some of the members of a large round.

    Attributes:
        members: in rank order.
        ranks: their group ranks.
        firsts: the global rank of the first worker of each.
    """

    kind: ClassVar[str] = "group"

    members: tuple[Member, ...]
    ranks: tuple[int, ...]
    firsts: tuple[int, ...]

    @property
    def version(self) -> int:
        """Rounds in parts came with the second version."""
        return 2

    def check(self) -> None:
        """Each member has a rank."""
        if not len(self.members) == len(self.ranks) == len(self.firsts):
            raise ValueError("its ranks are impossible")


@dataclass(frozen=True, slots=True)
class SwitchRecord(Record):
    """Every member of the round is to leave it.

    Attributes:
        round: the round's number.
        incarnation: the job's life.
        broken: it cannot go on (True), or a change is planned and waits for a step boundary.
        reason: for people.
        survey: nobody knows why it broke: who has left it is to say whom it does not reach.
        roll: nobody knows all its members: who was not in it is to say so, too.
    """

    kind: ClassVar[str] = "switch"

    round: int
    incarnation: str
    broken: bool
    reason: str
    survey: bool = False
    roll: bool = False


@dataclass(frozen=True, slots=True)
class OutcomeRecord(Record):
    """The end of an incarnation.

    Attributes:
        incarnation: the life of the job that ended.
        succeeded: the script ended well on all nodes.
        exit_code: what every agent ends with.
        reason: for people.
        fault: the root cause of a failure.
        node: name of the node where the root cause happened.
    """

    kind: ClassVar[str] = "outcome"

    incarnation: str
    succeeded: bool
    exit_code: int
    reason: str
    fault: FaultReport | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class EventRecord(Record):
    """One of the last events of the job.

    Attributes:
        at: seconds since the epoch on the writer's clock, to be shown and never compared.
        name: the event's name.
        round: the round it belongs to.
        node: name of the node that wrote it.
        text: for people.
    """

    kind: ClassVar[str] = "event"

    at: float
    name: str
    round: int
    node: str
    text: str


def as_dict(record: Record) -> dict[str, Any]:
    """The record as plain values, for ``--format json``."""
    return _plain(record)
