"""What one store follows, from the first look over lost connections to the last event.

**A look** watches first and reads then: all that is followed, as it was at one revision. What the
watches report up to that revision is dropped, what came meanwhile is delivered after it. The
other order, to read and then to watch from the next revision, would be slower: any write in
between makes a watch one of the past, which etcd serves up to 100 ms late. Only the oldest node's
key is watched from the past, as it is not known before the look; changes of that one key, and
what was missed while the store was lost, may come later than younger ones.

**When the stream of watches breaks**, the view asks the store for the same ranges *as of the last
revision that it delivered*. A store that answers what we knew has kept its data, and the
watches continue from there: nothing is lost, nothing comes twice. One that answers anything else
has another history. Its revision alone would not show it: after a restart on an empty disk, others
may have written more than there was before until we are back.

**The narrow view** follows the oldest node. When that one vanishes, or when our own key appears
and there was no node to follow, the view finds the next one by itself, and reports both at once
(by a ``Changed``, or by a ``StoreSnapshot`` if it has to look again). Else every node would have to
look wide to find out who is the oldest now.

Everything here runs on the hub's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_runtime.backoff import Backoff
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.protocol.records import JOB
from elastic_runtime.rendezvous.store_contract import Changed, Found, Lost, Refused, StoreSnapshot
from elastic_runtime.rendezvous.stores.etcd.connection_diagnosis import access_refusal
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import (
    HistoryGone,
    HistoryUnknown,
    NoLeader,
    StoreFull,
    StoreRefused,
    TokenRejected,
    canceled,
)
from elastic_runtime.rendezvous.stores.etcd.etcd_keys import OldNode, WatchScope, oldest_of, recall
from elastic_runtime.rendezvous.stores.etcd.range_reads import read_later

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.store_contract import Listener, StoreEntry, StoreEvent
    from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
    from elastic_runtime.rendezvous.stores.etcd.etcd_keys import Range, RunKeys
    from elastic_runtime.rendezvous.stores.etcd.shared_connection import Hub

    _Answers = Sequence[rpc.RangeResponse]

# What a store says itself.
_COMPLAINTS = (NoLeader, StoreFull, StoreRefused)
# Seconds between attempts to find a lost store again.
_PAUSES = Backoff(first=0.1, longest=1.0)
_MANY = 60  # failures in a row, after which the pause is the longest


@dataclass(slots=True)
class _Look:
    """A look under way: what for, and what the watches reported meanwhile."""

    scope: WatchScope
    forgot: bool
    meanwhile: list[tuple[int, Sequence[rpc.Event]]] = field(default_factory=list)


class View:
    """Keeps one listener informed.

    Args:
        hub: the connection.
        keys: the run's keys.
        endpoint: for a diagnosis, if nothing that we understand is there.
        acked_at: when the request was sent that kept our lease last; None: there is none.
    """

    def __init__(
        self,
        hub: Hub,
        keys: RunKeys,
        endpoint: Endpoint,
        acked_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._hub = hub
        self._keys = keys
        self._endpoint = endpoint
        self._acked_at = acked_at
        self._listener: Listener | None = None
        self._scope = WatchScope("")
        # The highest revision of any answer; no later answer may be below it.
        self.revision = 0
        # A look was asked for and has not been answered.
        self._owed = True
        # Whether the store has kept its data is not known yet; _recall finds out.
        self._doubtful = False
        # What we know: each followed range with the first revision that is not known of it, and
        # the versions of the keys in them. It stays true, if old, while nothing is watched.
        self._next: dict[Range, int] = {}
        self._known: dict[str, int] = {}
        self._leader = ""
        self._old_nodes: tuple[OldNode, ...] = ()
        self._watches: dict[int, Range] = {}
        self._unconfirmed: set[int] = set()
        self._looking: _Look | None = None
        self._attempt = 0
        self._lost = ""  # why
        self._breaks = 0  # of the stream, in a row

    # ------------------------------------------------------------ what the store asks for

    def start(self, own: str, listener: Listener) -> None:
        """Begins to follow, narrowly."""
        self._listener = listener
        self._scope = WatchScope(own)
        self._resume()

    def change_scope(
        self,
        own: str | None = None,
        wide: bool | None = None,
        without: frozenset[str] | None = None,
    ) -> None:
        """Follows something else; None: as before."""
        scope = self._scope
        self._scope = WatchScope(
            scope.own if own is None else own,
            scope.wide if wide is None else wide,
            scope.without if without is None else without,
        )
        # First it must be known whether the store has kept its data; the answer leads to this look.
        self._owed = True
        if self._listener is not None and not self._doubtful:
            self._look()

    def answered(self, revision: int, before: int) -> None:
        """A transaction of the store's has an answer.

        Args:
            revision: of the answer.
            before: ``self.revision`` when it was sent.
        """
        if revision >= before:
            self.revision = max(self.revision, revision)
        elif self._listener is not None and not self._doubtful:
            self._break_off()
            self._resume()

    def emit(self, event: StoreEvent) -> None:
        """Hands an event to the listener."""
        if self._listener is not None:
            self._listener(event)

    def stop(self) -> None:
        """Stops to follow and to report."""
        self._listener = None
        self._break_off()

    # ------------------------------------------------------------ looking

    def _resume(self) -> None:
        if self._doubtful:
            self._recall()
        elif self._lost:
            # A stream of watches would only break again; a small question waits for the store.
            self._ask((self._keys.one(JOB).read(keys_only=True),), lambda _: self._look())
        else:
            self._look()

    def _look(self, forgot: bool = False) -> None:
        self._attempt += 1
        self._owed, self._doubtful = True, False
        if forgot:
            self._old_nodes = ()
        look = self._looking = _Look(self._scope, forgot)
        try:
            self._hub.client.sign_in()
        except StoreUnavailable as error:
            self._failed(error)
            return
        watched = set(self._watches.values())
        for what in self._keys.always(look.scope):
            if what not in watched:
                watch = self._hub.watch(what, 0, self)
                self._watches[watch] = what
                self._unconfirmed.add(watch)
        self._read_if_confirmed(look)

    def _read_if_confirmed(self, look: _Look) -> None:
        if not self._unconfirmed:
            before, old_nodes = self.revision, self._old_nodes
            reads = self._keys.look(look.scope, old_nodes)
            self._ask(reads, lambda answers: self._looked(answers, look, before, old_nodes))

    def _looked(
        self, answers: _Answers, look: _Look, before: int, old_nodes: tuple[OldNode, ...]
    ) -> None:
        forgot = look.forgot or answers[0].header.revision < before
        result = self._keys.seen(answers, look.scope, old_nodes)
        if result is None or (forgot and old_nodes):
            # Nodes of another history say nothing; one that is gone is followed by the next.
            gone = oldest_of(look.scope, old_nodes)
            self._old_nodes = () if forgot else tuple(node for node in old_nodes if node != gone)
            look.forgot = forgot
            self._read_if_confirmed(look)
            return
        if not look.scope.wide:
            self._old_nodes = result.old_nodes
        self.revision = result.revision if forgot else max(self.revision, result.revision)
        self._known = {entry.key: entry.version for entry in result.entries}
        self._next = dict.fromkeys(result.followed, result.revision + 1)
        self._leader = result.leader
        self._owed, self._looking = False, None
        self._found()
        self.emit(StoreSnapshot(result.entries, look.scope.wide, forgot))
        for watch, what in list(self._watches.items()):
            if what not in self._next:
                self._unwatch(watch)
        self._watch()
        for watch, events in look.meanwhile:
            # A change that needs another look makes the rest superfluous: that look shows it.
            if watch in self._watches and self._looking is None:
                self._deliver(self._watches[watch], events)

    def _recall(self) -> None:
        before = self.revision
        last = {what: revision - 1 for what, revision in self._next.items()}
        self._ask(recall(last), lambda answers: self._recalled(answers, before))

    def _recalled(self, answers: _Answers, before: int) -> None:
        remembered = {
            self._keys.relative(kv.key): kv.mod_revision for answer in answers for kv in answer.kvs
        }
        if answers[0].header.revision < before or remembered != self._known:
            self._look(forgot=True)
        elif self._owed:
            self._look()
        else:
            self._doubtful = False
            self._found()
            self._watch()

    # ------------------------------------------------------------ asking, with patience

    def _ask(self, reads: Sequence[rpc.RangeRequest], then: Callable[[_Answers], None]) -> None:
        self._attempt += 1
        attempt = self._attempt
        client = self._hub.client

        def came(answers: _Answers | StoreUnavailable) -> None:
            self._hub.post(lambda: receive(answers))

        def receive(answers: _Answers | StoreUnavailable) -> None:
            if attempt != self._attempt:
                return
            if isinstance(answers, StoreUnavailable):
                self._failed(answers)
            else:
                self._hub.connected_once = True
                then(answers)

        try:
            client.sign_in()
        except StoreUnavailable as error:
            self._failed(error)
            return
        read_later(client, reads, came, patient=bool(self._lost))

    def _failed(self, error: StoreUnavailable) -> None:
        if isinstance(error, HistoryGone):
            self._look()
            return
        if isinstance(error, HistoryUnknown):
            self._look(forgot=True)
            return
        if isinstance(error, TokenRejected):
            self._hub.client.sign_out()
        # A node that had access once tries on: a running job survives a new password.
        if not self._next:
            refused = str(error) if isinstance(error, StoreRefused) else ""
            if not refused and not self._hub.connected_once:
                refused = access_refusal(self._endpoint)
            if refused:
                self.emit(Refused(refused))
                return
        if isinstance(error, StoreRefused):
            self._breaks = _MANY
        if not isinstance(error, TokenRejected):
            self._lose(error)
        self._doubtful = bool(self._next)
        self._try_again()

    def _try_again(self) -> None:
        attempt = self._attempt

        def again() -> None:
            if attempt == self._attempt and self._listener is not None:
                self._resume()

        self._hub.later(_PAUSES.random_pause(self._breaks + 1), again)

    def _lose(self, error: StoreUnavailable) -> None:
        # What the store itself reports is worth more than the first guess.
        complains = isinstance(error, _COMPLAINTS) and str(error) != self._lost
        if complains or not self._lost:
            self._lost = str(error)
            self.emit(Lost(self._lost, self._acked_at()))

    def _found(self) -> None:
        if self._lost:
            self._lost = ""
            self.emit(Found())

    # ------------------------------------------------------------ watching

    def _watch(self) -> None:
        watched = set(self._watches.values())
        for what, revision in self._next.items():
            if what not in watched:
                self._watches[self._hub.watch(what, revision, self)] = what

    def _unwatch(self, watch: int) -> None:
        del self._watches[watch]
        self._unconfirmed.discard(watch)
        self._hub.unwatch(watch)

    def _break_off(self) -> None:
        for watch in list(self._watches):
            self._unwatch(watch)
        self._attempt += 1
        self._looking = None
        self._doubtful = bool(self._next)

    def broken(self, error: StoreUnavailable) -> None:
        """The stream of watches is gone."""
        self._break_off()
        if self._listener is not None:
            self._failed(error)
            self._breaks += 1

    def on_response(self, watch: int, response: rpc.WatchResponse) -> None:
        """A response of one of our watches has come."""
        look, what = self._looking, self._watches[watch]
        if response.canceled and response.compact_revision:
            self._unwatch(watch)
            self._look()
        elif response.canceled:
            self.broken(canceled(response, self._endpoint))
        elif response.created:
            self._breaks = 0
            if look is not None and watch in self._unconfirmed:
                self._unconfirmed.discard(watch)
                self._read_if_confirmed(look)
        elif look is not None:
            look.meanwhile.append((watch, response.events))
        elif response.events:
            self._deliver(what, response.events)
        else:
            # A sign of progress: up to here there is nothing for us.
            self._next[what] = max(self._next[what], response.header.revision + 1)

    def _deliver(self, what: Range, events: Sequence[rpc.Event]) -> None:
        new_events = [event for event in events if event.kv.mod_revision >= self._next[what]]
        if not new_events:
            return
        self._next[what] = new_events[-1].kv.mod_revision + 1
        self.revision = max(self.revision, self._next[what] - 1)
        changes = list(self._keys.changes(new_events))
        overtaken = any(map(self._overtaken, changes))
        for changed in changes:
            for key in changed.deletes:
                self._known.pop(key, None)
            self._known.update((entry.key, entry.version) for entry in changed.puts)
        if overtaken and self._leader:
            gone, self._leader = self._leader, ""
            self._old_nodes = tuple(node for node in self._old_nodes if node.key != gone)
            self._unfollow(gone)
            self._succeed(gone)
            return
        if overtaken:
            self._look()
            return
        for changed in changes:
            self.emit(changed)

    def _succeed(self, gone: str) -> None:
        """The oldest node has gone: follows the next one, and reports both at once.

        It asks for one key only, and what else the watches report is delivered meanwhile: when a
        leader dies, all nodes do this at the moment when they wait for a round.
        """
        first, before = oldest_of(self._scope, self._old_nodes), self.revision
        if first is None:
            self._look()
            return
        self._owed = True

        def came(answers: _Answers) -> None:
            found = [self._keys.entry(kv) for kv in answers[0].kvs]
            revision = answers[0].header.revision
            if revision < before:
                self._look(forgot=True)
            elif [OldNode(entry.key, entry.created) for entry in found] != [first]:
                self._old_nodes = tuple(other for other in self._old_nodes if other != first)
                self._succeed(gone)
            else:
                self.revision, self._owed = max(self.revision, revision), False
                self._found()
                self._follow(found[0], revision)
                puts = tuple(found) if first.key != self._scope.own else ()
                self.emit(Changed(puts, (gone,)))

        self._ask((self._keys.one(first.key).read(),), came)

    def _follow(self, leader: StoreEntry, revision: int) -> None:
        if leader.key != self._scope.own:
            self._leader = leader.key
            self._known[leader.key] = leader.version
            self._next[self._keys.one(leader.key)] = revision + 1
            self._watch()

    def _unfollow(self, key: str) -> None:
        what = self._keys.one(key)
        del self._next[what]
        for watch in [one for one, watched in self._watches.items() if watched == what]:
            self._unwatch(watch)

    def _overtaken(self, changed: Changed) -> bool:
        """Whether the narrow view has to find another node to follow."""
        if self._scope.wide:
            return False
        put = {entry.key for entry in changed.puts}
        if self._leader:
            return self._leader in changed.deletes and self._leader not in put
        return self._scope.own in put and self._scope.own not in self._known
