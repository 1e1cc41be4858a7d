"""The rendezvous store on a torch TCPStore: nothing to install, one host to depend on.

The node whose address the endpoint names hosts the store, unless somebody does already; when the
host dies, another node on its machine takes over with an empty store. Leases are counters that
their holders move and the others age on their own clocks: the leader ages all nodes, the others
age the leader, and whoever finds one at rest for its TTL removes what hung on it.

A store has three threads at most: the *keeper* connects, looks at what is followed, keeps the
lease and ages the others'; one *reader* waits for announcements of common keys, and another one,
while the node leads, for those of nodes.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_runtime.clock import MonotonicClock
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.protocol.records import NODES
from elastic_runtime.rendezvous.store_contract import (
    Entry,
    Found,
    LeaseLost,
    Lost,
    MainLoopSilent,
)
from elastic_runtime.rendezvous.stores.c10d.cells import Cell, View
from elastic_runtime.rendezvous.stores.c10d.link import HostedStore, host_store
from elastic_runtime.rendezvous.stores.c10d.reader import Reader
from elastic_runtime.rendezvous.stores.c10d.run_cells import NOTHING
from elastic_runtime.rendezvous.stores.c10d.session import Connector, Session
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.store_contract import Listener, StoreEvent, Transaction
    from elastic_runtime.rendezvous.stores.c10d.run_cells import Run, Tape

__all__ = ["C10dStore", "HostedStore", "host_store"]

# Seconds: the keeper's step at most, and the first one while a reader connects; between attempts to
# connect; after which a store that never answered is reported as lost; for which closing waits for
# each thread.
_STEP = 0.5
_DEAF = 0.05
_AGAIN = 0.1
_QUIET = 1.0
_JOIN = 2.0

_MIN_TTL = 1.0


@dataclass(frozen=True, slots=True)
class _Show:
    """What is followed has changed."""


@dataclass(frozen=True, slots=True)
class _Wrote:
    """This node has written cells itself."""

    session: Session
    cells: dict[str, Cell]


@dataclass(frozen=True, slots=True)
class _GiveBack:
    """These keys hung on a lease that has been given up."""

    keys: tuple[str, ...]
    lease: bytes


@dataclass(frozen=True, slots=True)
class _Failed:
    """A connection of this session is of no more use."""

    session: Session
    why: str


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = _Show | _Wrote | _GiveBack | _Failed | _Stop


@dataclass(slots=True)
class _Lease:
    """What this node's keys hang on."""

    id: bytes = b""
    keys: set[str] = field(default_factory=set)


class C10dStore:
    """See ``rendezvous.store.Store``.

    Args:
        endpoint: where the TCPStore is, or is to be.
        run_id: names the run.
        lease_ttl: seconds; at least 1 is granted.
        connect_timeout: seconds that a first call waits for the connection.
    """

    def __init__(
        self, endpoint: Endpoint, run_id: str, lease_ttl: float, connect_timeout: float = 15.0
    ) -> None:
        self._connector = Connector(endpoint, run_id, connect_timeout)
        self._run_id = run_id
        self._ttl = max(_MIN_TTL, lease_ttl)
        self._connect_timeout = connect_timeout
        self._clock = MonotonicClock()
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._keeper: threading.Thread | None = None
        self._closing = threading.Event()
        # Guards what is asked for by the node's own thread; never held during I/O.
        self._lock = threading.Lock()
        self._asked: tuple[str, bool, frozenset[str]] = ("", False, frozenset())
        self._lease = _Lease()
        self._beat_at = self._clock.now()
        # Guards the present session.
        self._ready = threading.Condition()
        self._session: Session | None = None
        self._store_id = ""
        self._lost = False
        self._acked_at: float | None = None
        self._forgot = False
        self._step = _STEP
        # Guards what the listener has heard, and that it hears one thing at a time.
        self._delivery = threading.Lock()
        self._view = View("")
        self._viewed: Session | None = None
        self._listener: Listener = lambda event: None

    # ------------------------------------------------------------ the contract

    @property
    def granted_ttl(self) -> float:
        """Seconds; 0 before there is a lease."""
        return self._ttl if self._lease.id else 0.0

    @property
    def hosting(self) -> bool:
        """Whether the TCPStore is in this process, and ends with ``close``."""
        return self._connector.hosted is not None

    def start(self, own_key: str, listener: Listener) -> None:
        """Connects in the background and begins to deliver events."""
        self._listener = listener
        self._asked = (own_key, False, frozenset())
        self._beat_at = self._clock.now()
        # A thread that still waits in torch while the interpreter ends aborts the process.
        atexit.register(self.close)
        self._keeper = threads.spawn(self._keep, name="c10d-keeper")

    def follow(self, own_key: str) -> None:
        """Changes the own key; gives the old lease up."""
        with self._lock:
            _, wide, without = self._asked
            self._asked = (own_key, wide, without)
            old, self._lease = self._lease, _Lease()
        if old.id:
            self._commands.put(_GiveBack(tuple(old.keys), old.id))
        self._commands.put(_Show())

    def look(self, wide: bool, without: frozenset[str]) -> None:
        """Changes what is followed."""
        with self._lock:
            self._asked = (self._asked[0], wide, without)
        self._commands.put(_Show())

    def apply(self, transaction: Transaction) -> bool:
        """Performs a transaction."""
        session = self._wait_for_session()
        try:
            written = session.run.perform(transaction, self._take_lease, self._ttl)
            if written:
                session.run.announce(written, leads=self._asked[1])
        except MainLoopSilent:
            raise
        except StoreUnavailable as error:
            self._commands.put(_Failed(session, str(error)))
            raise
        if written:
            self._commands.put(_Wrote(session, written))
        return written is not None

    def beat(self) -> None:
        """Says that the agent's main loop lives."""
        self._beat_at = self._clock.now()

    def read(self, prefix: str) -> tuple[Entry, ...]:
        """All entries under a prefix."""
        session = self._wait_for_session()
        try:
            run = session.run
            found = run.nodes() if NODES.startswith(prefix[: len(NODES)]) else {}
            others = run.common() + run.events()
            found |= run.cells([key for key in others if key.startswith(prefix)])
        except StoreUnavailable as error:
            self._commands.put(_Failed(session, str(error)))
            raise
        entries = (c.entry(key) for key, c in found.items() if c.alive and key.startswith(prefix))
        return tuple(sorted(entries, key=lambda entry: entry.created))

    def close(self) -> None:
        """Gives the lease back and stops; a hosted TCPStore ends."""
        if self._closing.is_set():
            return
        self._closing.set()
        atexit.unregister(self.close)
        self._commands.put(_Stop())
        with self._ready:
            self._ready.notify_all()
            served = self._session is not None
        # Who only tries to connect has nothing to say, and may wait for an answer for long.
        if served and self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(_JOIN)
        self._connector.hosted = None

    # ------------------------------------------------------------ for the node's own thread

    def _take_lease(self, run: Run, key: str) -> bytes:
        with self._lock:
            lease = self._lease
            fresh = not lease.id
            if fresh:
                silent = self._clock.now() - self._beat_at
                if silent > self._ttl:
                    raise MainLoopSilent(silent)
                lease.id = os.urandom(16)
            lease.keys.add(key)
        if fresh:
            self._move(run, lease.id)
        return lease.id

    def _move(self, run: Run, lease: bytes) -> None:
        """Shows the others that the lease lives."""
        sent = self._clock.now()
        run.beat(lease)
        self._acked_at = sent

    def _wait_for_session(self) -> Session:
        with self._ready:
            if self._session is None and not self._store_id:
                self._ready.wait_for(
                    lambda: self._session or self._closing.is_set(), self._connect_timeout
                )
            if self._session is None or self._closing.is_set():
                raise StoreUnavailable(f"the c10d store at {self._connector.where} does not answer")
            return self._session

    # ------------------------------------------------------------ the keeper: connecting

    def _keep(self) -> None:
        while session := self._connect():
            why = ""
            try:
                self._serve(session)
            except StoreUnavailable as error:
                why = str(error)
            with self._ready:
                self._session = None
            if not self._closing.is_set():
                self._deliver(Lost(why, self._acked_at))
                self._lost = True
            session.cut()
        self._connector.hosted = None  # it may have begun to host after it was closed

    def _connect(self) -> Session | None:
        since = self._clock.now()
        while not self._closing.is_set():
            try:
                return self._connector.open()
            except StoreUnavailable as error:
                if not self._lost and self._clock.now() - since > _QUIET:
                    self._deliver(Lost(str(error), self._acked_at))
                    self._lost = True
            self._closing.wait(_AGAIN)
        return None

    # ------------------------------------------------------------ the keeper: serving

    def _serve(self, session: Session) -> None:
        forgot = self._store_id not in ("", session.store_id)
        self._store_id = session.store_id
        self._forgot = self._forgot or forgot  # until the listener has heard of it
        if forgot:
            with self._lock:
                self._lease = _Lease()
        with self._delivery:
            self._viewed = session
            if forgot:
                self._view = View(self._view.own)
        position = session.run.common_log.length()
        with self._ready:
            self._session = session
            self._ready.notify_all()
        if self._lost:
            self._lost = False
            self._deliver(Found())
        self._show(session)
        session.reader = self._read_along(session, _common_log, position)
        self._handle_commands(session)

    def _handle_commands(self, session: Session) -> None:
        ticks = _Ticks(self._clock.now())
        while True:
            left = ticks.at + self._step - self._clock.now()
            if left <= 0:
                self._tick(session, ticks)
                continue
            try:
                command = self._commands.get(timeout=left)
            except queue.Empty:
                continue
            match command:
                case _Stop():
                    self._say_goodbye(session)
                    return
                case _Failed(failed, why) if failed is session:
                    raise StoreUnavailable(why)
                case _Wrote(written, cells) if written is session:
                    self._echo(session, cells)
                case _Show():
                    self._show(session)
                case _GiveBack(keys, lease):
                    self._remove(session, keys, lease)

    def _show(self, session: Session) -> None:
        """Reads what is followed, and delivers it as a snapshot."""
        run = session.run
        with self._lock:
            own, wide, without = self._asked
        position = run.nodes_log.length()
        leader = "" if wide else run.oldest(without)
        with self._delivery:
            # From here on the reader delivers what happens to the leader, so that nothing is
            # missed between the reading below and the snapshot.
            self._view.own, self._view.leader = own, leader
        found = self._read_followed(run, wide)
        with self._delivery:
            self._view.wide = wide
            self._listener(self._view.show(found, self._forgot))
            self._forgot = False
        if wide and session.node_reader is None:
            session.node_reader = self._read_along(session, _nodes_log, position)
        elif not wide:
            session.dismiss_node_reader()

    def _read_followed(self, run: Run, wide: bool) -> dict[str, Cell]:
        with self._delivery:
            own, leader = self._view.own, self._view.leader
            known = [key for key in self._view.cells if key.startswith(NODES)]
        found = run.cells(run.common())
        if wide:
            found |= run.nodes()
            found |= run.cells([key for key in known if key not in found])
        for key in {own, leader} - found.keys() - {""}:
            found[key] = run.peek(key)
        return found

    def _echo(self, session: Session, cells: dict[str, Cell]) -> None:
        """Delivers what this node wrote itself; its announcement may be on a tape not read."""
        born = self._view.own in cells and self._view.own not in self._view.cells
        if born and not self._view.wide:
            self._show(session)  # now there is certainly an oldest node
        else:
            self._merge(session, cells)

    def _merge(self, session: Session, cells: dict[str, Cell]) -> None:
        with self._delivery:
            changed = self._view.merge(cells) if self._viewed is session else None
            if changed is None:
                return
            if self._view.leader in changed.deletes and not self._view.wide:
                self._commands.put(_Show())  # with the next leader
                return
            self._listener(changed)

    def _deliver(self, event: StoreEvent) -> None:
        with self._delivery:
            self._listener(event)

    # ------------------------------------------------------------ the keeper: leases

    def _tick(self, session: Session, ticks: _Ticks) -> None:
        now = self._clock.now()
        gap, ticks.at = now - ticks.at, now
        self._step = min(2 * self._step, _STEP, self._ttl / 6)
        lease = self._lease
        if lease.id and gap > self._ttl:  # this process was stopped
            self._deliver(LeaseLost(self._acked_at))
            ticks.looked = now
            self._move(session.run, lease.id)
            self._show(session)
        elif lease.id and now - self._beat_at > self._ttl:
            self._give_up(session, lease)
        elif lease.id and now - ticks.beaten >= self._ttl / 3 - _STEP / 10:
            ticks.beaten = now
            self._move(session.run, lease.id)
        if session.deaf or now - ticks.looked >= self._ttl / 3:
            ticks.looked = now
            self._look_again(session)
        self._age(session)

    def _give_up(self, session: Session, lease: _Lease) -> None:
        """The agent's main loop hangs: nobody should count on this node."""
        with self._lock:
            if self._lease is lease:
                self._lease = _Lease()
        self._deliver(LeaseLost(self._acked_at))
        self._remove(session, tuple(lease.keys), lease.id)

    def _look_again(self, session: Session) -> None:
        """Finds what was written but not announced, because its writer died."""
        session.wake_readers()
        leaderless = not self._view.wide and not self._view.leader
        if leaderless and session.run.oldest(self._asked[2]):
            self._show(session)
        else:
            self._merge(session, self._read_followed(session.run, self._view.wide))

    def _age(self, session: Session) -> None:
        with self._delivery:
            ttls = self._view.leases()
        counts = session.run.counts(ttls)
        for lease in session.ageing.observe(counts, ttls, self._clock.now()):
            with self._delivery:
                keys = tuple(self._view.held_by(lease))
            self._remove(session, keys, lease)

    def _remove(self, session: Session, keys: tuple[str, ...], lease: bytes) -> None:
        """Removes keys that still hang on a lease that has ended."""
        gone: dict[str, Cell] = {}
        for key in keys:
            cell = session.run.remove(key, lease=lease)
            if cell is not None:
                gone[key] = cell
        if gone:
            session.run.announce(gone)
            self._merge(session, gone)

    def _say_goodbye(self, session: Session) -> None:
        for reader in session.readers:
            reader.end()
        lease = self._lease
        if lease.id:
            self._remove(session, tuple(lease.keys), lease.id)
        # Wakes our own readers: torch prints a complaint when a socket closes under a call.
        session.dismiss_node_reader()
        session.run.common_log.append(NOTHING)
        for reader in session.readers:
            reader.join(_JOIN)

    # ------------------------------------------------------------ the readers

    def _read_along(self, session: Session, tape: Callable[[Run], Tape], position: int) -> Reader:
        audience = _Audience(self, session)
        reader = Reader(self._connector.link, self._run_id, tape, position, audience)
        self._step = _DEAF
        reader.start()
        return reader


@dataclass(frozen=True, slots=True)
class _Audience:
    """Passes on what a reader of one session finds."""

    store: C10dStore
    session: Session

    def followed(self, keys: Iterable[str]) -> list[str]:
        with self.store._delivery:
            return [key for key in keys if key and self.store._view.follows(key)]

    def found(self, cells: dict[str, Cell]) -> None:
        self.store._merge(self.session, cells)

    def lagged(self) -> None:
        self.store._commands.put(_Show())

    def failed(self, why: str) -> None:
        self.store._commands.put(_Failed(self.session, why))


def _common_log(run: Run) -> Tape:
    return run.common_log


def _nodes_log(run: Run) -> Tape:
    return run.nodes_log


@dataclass(slots=True)
class _Ticks:
    """When the keeper last did what it does regularly (seconds on its clock)."""

    at: float
    beaten: float = float("-inf")
    looked: float = field(default=0.0)

    def __post_init__(self) -> None:
        self.looked = self.at
