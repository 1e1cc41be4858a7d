"""What the rendezvous asks of a store. The adapters: etcd v3, the embedded store, memory.

It is little: a compare-and-swap, keys that vanish with their owner's lease, and a watch. Keys are
relative to the run's prefix (``job``, ``nodes/<uuid>``, …); ``protocol.records`` lists them.

**What is watched.** A store always follows the *common* keys (everything but ``nodes/``,
``events/`` and ``group/``), the node's own key, and the key of one other node, the leader. Only a
node that leads looks ``wide`` and follows all of ``nodes/``: with every node following every
other, n joins would cost n² messages, and 400 nodes would not come together in seconds.

**Order.** After ``start`` and after each ``look`` the listener gets one ``StoreSnapshot`` of what
is followed, then ``Changed`` for what happens after it, in the store's order, each change once.
When the connection was lost, the adapter connects again by itself and delivers what was missed,
or a new ``StoreSnapshot``.

**Lost data.** A store that lost its data (its process restarted on an empty disk) delivers a
``StoreSnapshot`` with ``forgot`` set. Leases are gone then; the adapter takes a new one for the
next leased put.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from elastic_runtime.errors import StoreUnavailable

ABSENT = 0


class MainLoopSilent(StoreUnavailable):
    """A leased key was not written: the agent's main loop has not said that it runs."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the agent's main loop has not run for {seconds:.0f} s")


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One key as the store has it.

    Attributes:
        key: relative to the run's prefix.
        value: the bytes.
        created: grows from key to key in the order in which they were created; kept by updates.
        version: changes with every write to this key; what ``Expect`` compares. Never 0.
    """

    key: str
    value: bytes
    created: int
    version: int


@dataclass(frozen=True, slots=True)
class Expect:
    """A condition: the key has this version (``ABSENT``: it does not exist)."""

    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """A write. A leased key vanishes when its writer's lease ends; an unleased one stays.

    Writing a leased key again without ``leased`` takes it off the lease.
    """

    key: str
    value: bytes
    leased: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """Writes that take place together if all conditions hold, else not at all.

    Attributes:
        expects: the conditions; none means: always.
        puts: the writes.
        deletes: keys to remove; an absent one is no error, nor is one that is named twice.

    Raises:
        ValueError: it writes a key twice, or also removes it.
    """

    expects: tuple[Expect, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Not every store would say so, and etcd only where it comes to this.
        written = {put.key for put in self.puts}
        if len(written) < len(self.puts) or not written.isdisjoint(self.deletes):
            keys = sorted([*(put.key for put in self.puts), *self.deletes])
            raise ValueError(f"a transaction writes one of these keys twice: {keys}")


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """All that is followed, at one moment.

    Attributes:
        entries: in order of creation.
        wide: whether all nodes are in it.
        forgot: the store has lost its data since its last answer.
    """

    entries: tuple[StoreEntry, ...]
    wide: bool
    forgot: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """Writes and removals, in order. A key in both was removed first and then written."""

    puts: tuple[StoreEntry, ...] = ()
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """The store does not answer; the adapter keeps trying.

    Attributes:
        why: for people.
        acked_at: when the request was sent that kept our lease last, as far as the store has
            acknowledged it (seconds, monotonic); None: there is no lease.
    """

    why: str
    acked_at: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The store answers again. What was missed follows."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Our lease has ended, or may have: everything put under it is, or will be, gone.

    Attributes:
        acked_at: as in ``Lost``.
    """

    acked_at: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The store will never take us: a wrong password, a wrong certificate, not such a store."""

    why: str


StoreEvent = StoreSnapshot | Changed | Lost | Found | LeaseLost | Refused
Listener = Callable[[StoreEvent], None]


class Store(Protocol):
    """One node's view of the store of one run. Thread-safe; the listener runs on its threads."""

    @property
    def granted_ttl(self) -> float:
        """Seconds until a silent node's keys vanish, as granted; 0 before there is a lease."""
        ...

    @property
    def hosted_here(self) -> bool:
        """Whether the store ends with this process, or with the one that has started it."""
        ...

    def start(self, own_key: str, listener: Listener) -> None:
        """Connects in the background and begins to deliver events; returns at once.

        Args:
            own_key: this node's key, which is always followed.
            listener: called with each event, from the store's threads; must not block.
        """
        ...

    def follow(self, own_key: str) -> None:
        """Changes the own key, for an agent that joins as a new node. A ``StoreSnapshot`` follows.

        The old lease is given up: what was put under it vanishes.
        """
        ...

    def look(self, wide: bool, without: frozenset[str]) -> None:
        """Changes what is followed; a ``StoreSnapshot`` follows.

        Args:
            wide: follow all nodes; otherwise only the oldest one, as the leader.
            without: keys of nodes that are known to be dead, not to be taken for the oldest.
        """
        ...

    def apply(self, transaction: Transaction) -> bool:
        """Performs a transaction; blocks for one round trip, with a deadline.

        Returns:
            Whether the conditions held. If a retry inside cannot tell whether the first try took
            effect, the adapter reads back and answers what is true.

        Raises:
            MainLoopSilent: it would need a lease, and there was no ``beat`` for one TTL. It had
                no effect. Else an agent that hangs would come back as soon as its lease ends.
            StoreUnavailable: no answer; it may have taken effect or not.
        """
        ...

    def beat(self) -> None:
        """Says that the agent's main loop runs; ``start`` counts as the first time.

        Without it, keep-alives stop within one TTL, and no new lease is taken.
        """
        ...

    def read(self, prefix: str) -> tuple[StoreEntry, ...]:
        """All entries under a prefix (``""``: all), in order of creation; blocks.

        Raises:
            StoreUnavailable: no answer.
        """
        ...

    def close(self) -> None:
        """Gives the lease back, so that leased keys vanish at once, and stops. Idempotent."""
        ...
