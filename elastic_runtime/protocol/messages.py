"""The messages of an agent and its workers: one JSON object a line over a Unix socket.

A worker connects to the path in ``ELASTIC_CHANNEL`` the first time that the library is used in
it; a script that never imports this package never does. The step that a worker has committed is
not sent but published in a small file mapped by both sides (``ProgressFile``): a store to memory,
which survives the worker.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any, ClassVar

from elastic_runtime import codec
from elastic_runtime.errors import RecordError

# Set by the agent for each worker.
ENV_CHANNEL = "ELASTIC_CHANNEL"  # path of the agent's Unix socket
ENV_PROGRESS = "ELASTIC_PROGRESS"  # path of this worker's progress file
ENV_ROUND = "ELASTIC_ROUND"  # number of the round
ENV_INCARNATION = "ELASTIC_INCARNATION"  # the job's incarnation that the round belongs to
ENV_NODE = "ELASTIC_NODE_NAME"  # the node's name
ENV_DEATH = "ELASTIC_DEATH"  # path of the file through which its death is noticed; "": none
ENV_MOST_WORKERS = "ELASTIC_MOST_WORKERS"  # the most that the job may have, over all nodes
ENV_SERIAL = "ELASTIC_WORKER"  # number of the worker, counted over all that this agent has started

# A worker that was asked to leave, and has left at a step boundary, ends with this code.
EXIT_WORKER_LEFT = 79

MAX_LINE = 1 << 20


# Part of the reason for which a round is broken when all ranks are in collectives, without end.
HANG = "the ranks wait for each other"


@dataclass(frozen=True, slots=True)
class Message:
    """The JSON form that all messages share."""

    kind: ClassVar[str] = ""

    def encode(self) -> bytes:
        """One line, with its newline."""
        return codec.encode(self, kind=self.kind) + b"\n"


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """Worker → agent, first.

    Attributes:
        rank: global rank.
        round: the round it was started for.
        pid: its process.
        drains: it can save and leave at a step boundary when asked to (its state is saved).
        life: number of the worker, as in ``ELASTIC_WORKER``.
        shielded: a SIGTERM that is not its agent's does not end it.
        watched: its main thread holds the file through which its death is noticed.
    """

    kind: ClassVar[str] = "hello"

    rank: int
    round: int
    pid: int
    drains: bool
    life: int = 0
    shielded: bool = False
    watched: bool = False


_OF_LOGGERS = frozenset({"self", "event", "level", "timestamp"})


@dataclass(frozen=True, slots=True)
class Note(Message):
    """Worker → agent: an event for people and for the log (a save, a resume, a damaged file)."""

    kind: ClassVar[str] = "note"

    name: str
    rank: int
    round: int
    fields: dict[str, Any]

    def __post_init__(self) -> None:
        """Raises ValueError if a field has a name that a logger gives a meaning of its own."""
        if taken := _OF_LOGGERS & self.fields.keys():
            raise ValueError(f"no field of an event is called {', '.join(sorted(taken))}")


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """Agent → worker: save at a step that all ranks agree on, then end with ``EXIT_WORKER_LEFT``.

    It is called "drain" on the wire.
    """

    kind: ClassVar[str] = "drain"

    round: int
    reason: str


# ---------------------------------------------------------------- in place


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """Worker → agent: the script has called ``elastic.run``, and this worker can join a round."""

    kind: ClassVar[str] = "ready"


@dataclass(frozen=True, slots=True)
class Left(Message):
    """Worker → agent: no thread of this process takes part in the round now.

    Attributes:
        round: the round.
        step: the last step that its state contains; -1: none.
        planned: all ranks agreed to leave at this step.
        reason: one line for people.
        released: its state is not needed: all ranks knew that its node leaves, or nothing is
            ever saved.
    """

    kind: ClassVar[str] = "left"

    round: int
    step: int
    planned: bool
    reason: str
    released: bool = False


@dataclass(frozen=True, slots=True)
class Trained(Message):
    """Worker → agent: ``train`` has returned on all ranks of the round; perhaps they still save."""

    kind: ClassVar[str] = "trained"

    round: int


@dataclass(frozen=True, slots=True)
class Returned(Message):
    """Worker → agent: ``elastic.run`` is about to return, and the script goes on."""

    kind: ClassVar[str] = "returned"

    round: int


@dataclass(frozen=True, slots=True)
class Heard(Message):
    """Worker → agent: its channel thread runs, and this is where its main thread is.

    Attributes:
        collective: it waits for other ranks.
        where: file, line and function for people.
        busy: what the script has said that it is busy with, "" if nothing.
    """

    kind: ClassVar[str] = "heard"

    collective: bool
    where: str
    busy: str


@dataclass(frozen=True, slots=True)
class Ask(Message):
    """Agent → worker: ``Heard`` is wanted."""

    kind: ClassVar[str] = "ask"


@dataclass(frozen=True, slots=True)
class Enter(Message):
    """Agent → worker: take part in this round.

    Attributes:
        round: its number.
        rank, world: this worker's global rank, and how many there are.
        local_rank, local_world: the same on this node.
        group_rank, group_world: this node's rank, and how many nodes there are.
        host, port: the TCPStore of the round.
        key: prefix of everything that the round keeps there.
        spares: ``[host, port]`` of the stores that a later round is likely to use.
        committed: the highest step that was reported in any earlier round; -1: none.
    """

    kind: ClassVar[str] = "enter"

    round: int
    rank: int
    world: int
    local_rank: int
    local_world: int
    group_rank: int
    group_world: int
    host: str
    port: int
    key: str
    spares: list[list[Any]]
    committed: int = -1


@dataclass(frozen=True, slots=True)
class Nearby(Message):
    """Agent → worker: connect to these stores now, while no rank waits for it.

    Attributes:
        places: ``[host, port]`` of the stores that the next round is likely to use.
    """

    kind: ClassVar[str] = "nearby"

    places: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Interrupt(Message):
    """Agent → worker: the round is broken; leave it now."""

    kind: ClassVar[str] = "interrupt"

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class Change(Message):
    """Agent → worker: leave the round at a step that all ranks agree on.

    Attributes:
        round: the round.
        reason: for people.
        goes: this node leaves the job, and does not only change its rank.
        grows: others join, and nobody leaves.
    """

    kind: ClassVar[str] = "change"

    round: int
    reason: str
    goes: bool
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Dismiss(Message):
    """Agent → worker: there will be no further round for this worker; end.

    Attributes:
        saves: save your state before, if it is saved at all: no other worker has it.
    """

    kind: ClassVar[str] = "dismiss"

    saves: bool = False


_KINDS: dict[str, type[Message]] = {
    cls.kind: cls
    for cls in (
        Hello,
        Note,
        Leave,
        Ready,
        Left,
        Trained,
        Returned,
        Heard,
        Ask,
        Enter,
        Interrupt,
        Change,
        Nearby,
        Dismiss,
    )
}


def decode(line: bytes) -> Message:
    """Reads one line.

    Raises:
        RecordError: it is no message that this version knows.
    """
    try:
        body = codec.parse(line)
        cls = _KINDS[body.pop("kind")]
        return codec.build(cls, body, exact=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError("worker channel", f"not a message: {error!r}") from None


class ProgressFile:
    """The step that a worker has reached, in a file mapped by the worker and by its agent.

    Layout (little endian, 8-byte fields, each written by one aligned store): the step, -1 if none
    was reported; the steps completed by this process; the moment of the last one, in nanoseconds
    on the machine's monotonic clock; in place, the moment since which a next step is to be
    expected, on the same clock, or 0 while this process is not in ``train``, or 1 while it is there
    and busy with something else. Of a rank that trains alone: the inner steps that it has made
    since a step, in the lower half, with that step in the upper half; those of this round; and the
    moment of the last one.
    """

    SIZE = 56
    BUSY = 1
    _LAYOUT = struct.Struct("<qqqqqqq")

    def __init__(self, path: str, *, create: bool = False) -> None:
        """Maps the file at ``path``.

        Args:
            path: the file; "": memory of this process alone, for a worker without such a file.
            create: it is made, or taken over, and says "no step yet".

        Raises:
            OSError: it cannot be opened, there is no room for it, or it is too short.
        """
        if not path:
            self._map = mmap.mmap(-1, self.SIZE)
            self._LAYOUT.pack_into(self._map, 0, -1, 0, 0, 0, 0, 0, 0)
        else:
            flags = os.O_RDWR | (os.O_CREAT if create else 0)
            descriptor = os.open(path, flags, 0o600)
            try:
                self._map = self._mapped(descriptor, path, create=create)
            finally:
                os.close(descriptor)
        self._view = memoryview(self._map).cast("q")

    def _mapped(self, descriptor: int, path: str, *, create: bool) -> mmap.mmap:
        if create:
            # Written, and not only made so long: a store to mapped memory for which a full disk has
            # no block is SIGBUS, and ends the process.
            os.pwrite(descriptor, self._LAYOUT.pack(-1, 0, 0, 0, 0, 0, 0), 0)
        if os.fstat(descriptor).st_size < self.SIZE:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)
        return mmap.mmap(descriptor, self.SIZE)

    def publish(self, step: int, count: int, moment_ns: int) -> None:
        """Says that ``step`` is reached, after ``count`` steps of this process."""
        self._view[2] = moment_ns
        self._view[1] = count
        self._view[0] = step

    def expect(self, since_ns: int) -> None:
        """Says since when a next step is to be expected; 0 or ``BUSY``: none is."""
        self._view[3] = since_ns

    def keep(self, step: int, inner: int, count: int, moment_ns: int) -> None:
        """Says that this rank has made ``inner`` inner steps since ``step``, and keeps them; in
        this round ``count``."""
        self._view[6] = moment_ns
        self._view[5] = count
        self._view[4] = step << 32 | inner

    @property
    def kept(self) -> tuple[int, int]:
        """After which step the rank has made inner steps that it keeps, and how many."""
        return self._view[4] >> 32, self._view[4] & 0xFFFFFFFF

    def moves(self) -> tuple[int, int]:
        """``(count, moment in ns)`` of the last step, where inner steps are some as well."""
        return self._view[1] + self._view[5], max(self._view[2], self._view[6])

    @property
    def expected(self) -> int:
        """Since when a next step is to be expected, in nanoseconds; 0 or ``BUSY``: none is."""
        return self._view[3]

    def read(self) -> tuple[int, int, int]:
        """``(step, count, moment in ns)`` as last published."""
        return self._view[0], self._view[1], self._view[2]

    def close(self) -> None:
        """Unmaps the file; it stays where it is."""
        self._view.release()
        self._map.close()
