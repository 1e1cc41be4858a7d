"""What is kept in the store, as versioned JSON. Nothing here is ever unpickled or executed.

Every record is a frozen dataclass with ``encode()`` and a ``decode(key, data)`` that raises
``RecordError`` with the key for anything that is not exactly what it should be. Unknown fields
are ignored, so that a newer member of a job may say more than an older one understands; a newer
``v`` is refused. Those of rounds are in ``round_records``.

Keys, all under ``<prefix>/<run id>/``::

    job                 JobRecord       what the job is
    nodes/<uuid>        NodeRecord      one agent process (leased)
    round               RoundRecord     the one agreed membership
    group/<id>/<part>   GroupRecord     the members of a large round, in parts
    switch              SwitchRecord    "leave round n now": it broke, or a change is planned
    outcome             OutcomeRecord   the end
    events/<rank>-<n>   EventRecord     the last events, for ``elasticctl``
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from elastic_runtime import codec
from elastic_runtime.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
LEAVING = "draining"  # was asked to leave, and still has workers
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
LACKS_RESOURCES = "no room"  # the machine refuses to start a worker


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
        count: how many events it has written so far.
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
        return codec.encode(self, v=self.version, kind=self.kind)

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
            body = codec.parse(data)
        except ValueError as error:
            raise RecordError(key, f"it is not JSON ({error})") from None
        if not isinstance(body, dict) or body.get("kind") != cls.kind:
            raise RecordError(key, f"it is no {cls.kind} record")
        version = body.get("v")
        if not isinstance(version, int) or version > FORMAT:
            raise RecordError(key, f"its format is {version!r}, this program reads up to {FORMAT}")
        try:
            record = codec.build(cls, body)
            record.check()
            return record
        except ValueError as error:
            raise RecordError(key, str(error)) from None


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
        inner: the most inner steps that one of them had made alone since that step.
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
    inner: int = 0


@dataclass(frozen=True, slots=True)
class JobRecord(Record):
    """What the job is. Launch bounds and present bounds are apart: a scale changes only the latter.

    Attributes:
        incarnation: uuid of this incarnation of the job.
        min_nodes, max_nodes: the bounds in force, in nodes.
        launch_min, launch_max: the bounds that the nodes were started with.
        node_unit: the world is a multiple of this many nodes.
        entry: the script or module, for people and for the conflict check.
        in_place: survivors keep their processes.
        first_round: the number below the first round of this incarnation; numbers never repeat.
        settings: fingerprint of the launch settings; a node with another one is of another job.
        secret: with which its nodes prove themselves to each other (``protocol.peer_proof``), the
            same in all incarnations; "" in the record of a version that knew none.
        invocation: the command that has started the node which began this incarnation; "": that
            node alone. Its nodes do not begin another one when this one has an outcome.
        protocol: of what its nodes say to each other (``config.PROTOCOL``), a part of ``settings``;
            "" in the record of a version that did not write it down.
        release: the version of this package that began this incarnation, for people; or "" as well.
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
    """One agent process, as a node of the job. If it joins again, it does so with another uuid.

    Attributes:
        node: its uuid.
        name: for people.
        address: where other nodes reach this one.
        workers: how many workers it can take into a round now; in place, 0 while none is ready.
        probe_port: where it answers probes.
        store_port: where it would host the next round's TCPStore; 0: it cannot.
        settings: fingerprint of the launch settings, compared with the leader's.
        status: ``in``, ``draining``, ``done`` or ``gone``.
        incarnation: the one of the job that ``left`` and ``done_round`` belong to.
        left: the last round whose workers have all ended here.
        rank: the node's group rank in that round; -1: none, or unknown.
        done_round: the round in which this node's workers ended well; 0: none.
        step: the highest step committed, written at changes only; -1: none reported.
        fault: why round ``left`` was left.
        life: number of the agent process under this name; those with lower numbers have ended. 0:
            not numbered.
        checked: the last round whose members it has probed; 0: none.
        unreachable: the nodes that it does not reach, by uuid, as far as it has probed.
        torch, regroup: its version of torch, and how its ranks would regroup in place; "": not
            known.
        full: how many workers it has when all are ready; 0: not known.
        returned: in place, the round in which ``train`` has returned on all ranks; 0: none.
        topology: where it is in its network, for ``topology.known_topology``; "": not known.
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
    torch: str = ""
    regroup: str = ""
    full: int = 0
    returned: int = 0
    topology: str = ""


@dataclass(frozen=True, slots=True)
class SwitchRecord(Record):
    """Every member of the round is to leave it.

    Attributes:
        round: the round's number.
        incarnation: that of the job.
        broken: it cannot go on (True), or a change is planned and waits for a step boundary.
        reason: for people.
        survey: no report says why it broke: each node that has left it is to write which nodes it
            does not reach.
        roll: no node knows all its members: a node that was not in it is to write that, too.
        grows: the change is for more nodes or workers: a round that has nothing left to train
            takes no part in it.
    """

    kind: ClassVar[str] = "switch"

    round: int
    incarnation: str
    broken: bool
    reason: str
    survey: bool = False
    roll: bool = False
    grows: bool = False


@dataclass(frozen=True, slots=True)
class OutcomeRecord(Record):
    """The end of an incarnation.

    Attributes:
        incarnation: the one that ended.
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
