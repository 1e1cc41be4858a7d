"""A simulated node: the real membership core, driven as ``participant`` drives it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import NodeRecord
from elastic_runtime.rendezvous.core import membership
from elastic_runtime.rendezvous.core.actions import (
    Action,
    ApplyTransaction,
    Follow,
    ListParts,
    Look,
    Notify,
    Probe,
    ReadMembers,
)
from elastic_runtime.rendezvous.core.membership_events import (
    ALIVE,
    OTHER,
    REFUSED,
    SILENT,
    Applied,
    Event,
    NewNode,
    Tick,
)
from elastic_runtime.rendezvous.core.reducer import reduce_all
from elastic_runtime.rendezvous.round_completer import RoundCompleter, parts_seen
from elastic_runtime.rendezvous.store_contract import LeaseLost, Lost, Transaction
from tests.model.agent import Agent
from tests.model.clockwork import Violation
from tests.model.store import Client
from tests.model.trace import brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.rendezvous.core.notices import (
        Notice,
    )
    from elastic_runtime.rendezvous.policy import Policy
    from tests.model.world import World

PROBE_TIMEOUT = 0.5
# More than this in one simulated second is a storm: twice the most that was ever seen.
STORM = {"decide": 60, "ApplyTransaction": 20, "Probe": 40, "Look": 18, "Notify": 15}


class Node:
    """One agent process and its workers.

    Args:
        world: the simulation.
        number: names it.
        policy: its settings.
        settings: fingerprint of them.
    """

    def __init__(self, world: World, number: int, policy: Policy, settings: str) -> None:
        self.world = world
        self.clock = world.clock
        self.name = f"n{number}"
        self.port = 1000 + number
        self.settings = settings
        self.zero = self.clock.within(0.0, 1e6)  # clocks of two nodes have nothing in common
        self.alive = True
        self.paused_at: float | None = None
        self.lives = 0
        self.uuid = ""
        self.state = membership.begin(policy)
        self.inbox: list[Event] = []
        self.todo: deque[Action] = deque()
        self.blocked = False
        self.wake = float("inf")
        self.alarm: object = None
        self.deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.hung_at: float | None = None  # its main loop, not the participant
        self.unheard: list[Notice] = []
        self.client = Client(
            world.store, self._from_store, lambda: self.running, lambda: self.hung_at is None
        )
        self.rounds = RoundCompleter(self.client.read, policy.layout.keepers)
        self.second = 0
        self.counts = dict.fromkeys(STORM, 0)
        self.agent = Agent(self)

    # -- the process

    @property
    def running(self) -> bool:
        """Neither dead nor paused."""
        return self.alive and self.paused_at is None

    def later(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        """As ``Clockwork.after``, within this process: not while it is paused."""
        self.clock.after(delay, self._due, action, args)

    def _due(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.paused_at is not None:
            self.deferred.append((action, args))
        else:
            action(*args)

    def crash(self) -> None:
        """The agent and its workers are killed."""
        self.alive = False
        self.client.vanish()
        self.agent.killed()

    def pause(self) -> None:
        """SIGSTOP of the whole tree."""
        self.paused_at = self.clock.now
        self.client.keep_lease()
        self.world.groups_changed()

    def resume(self) -> None:
        """SIGCONT: the clock has jumped, and a lease that has run out is noticed first."""
        assert self.paused_at is not None
        if self.clock.now - self.paused_at > 0.8 * self.state.policy.timeouts.fence_timeout:
            self.world.excuse(self)
        self.paused_at = None
        early, self.inbox = self.inbox, []
        self.client.check_lease()
        self.inbox.extend(early)
        self.client.keep_lease()
        due, self.deferred = self.deferred, []
        for action, args in due:
            self.later(0.0, action, *args)
        self.world.groups_changed()
        self._turn()

    def hang(self) -> None:
        """The agent's main loop stands still; the participant goes on."""
        self.hung_at = self.clock.now
        self.client.keep_lease()
        self.world.groups_changed()

    def go_on(self) -> None:
        """The main loop turns again, and finds what was told to it."""
        assert self.hung_at is not None
        if self.clock.now - self.hung_at > 0.8 * self.state.policy.timeouts.fence_timeout:
            self.world.excuse(self)
        self.hung_at = None
        self.client.keep_lease()
        heard, self.unheard = self.unheard, []
        for notice in heard:
            self.agent.hear(notice)
        self._turn()

    def exit(self, code: str) -> None:
        """The agent's command ends by itself."""
        if self.alive:
            self.clock.log(self.name, f"exits: {code}")
            self.alive = False
            self.client.close()
            self.agent.killed()
            self.world.exits[self.name] = code

    # -- the participant

    def start(self) -> None:
        """The agent begins."""
        self.join(first=True)

    def join(self, *, first: bool = False) -> None:
        """Begins a new life."""
        self.lives += 1
        self.uuid = f"{self.name}.{self.lives}"
        self.world.by_uuid[self.uuid] = self
        record = NodeRecord(
            node=self.uuid,
            name=self.name,
            address="127.0.0.1",
            workers=0 if self.agent.lacking else 1,
            probe_port=self.port,
            store_port=self.port,
            settings=self.settings,
            full=1,
        )
        if first:
            self.client.start(records.node_key(self.uuid))
        self.feed(NewNode(record))

    def feed(self, event: Event) -> None:
        """Puts an event into the inbox."""
        self.inbox.append(event)
        self._turn()

    def _from_store(self, event: Event) -> None:
        if self.alive:
            if isinstance(event, Lost | LeaseLost) and event.acked_at is not None:
                event = replace(event, acked_at=event.acked_at + self.zero)
            self.feed(event)

    def _turn(self) -> None:
        if not self.running or self.blocked:
            return
        self._perform()
        while (self.inbox or self.wake <= self.clock.now) and self.running and not self.blocked:
            self._decide()

    def _decide(self) -> None:
        now = self.clock.now + self.zero
        events, self.inbox = self.inbox or [Tick()], []
        clock = self.clock
        actions: list[Action] = []
        news: list[Event] = []
        self._count("decide")
        if clock.tracing:
            for event in events:
                clock.log(self.name, f"<- {brief(event)}")
        before = self.state
        for event in self.rounds.take(events, self.uuid, before.shown.wide, now):
            if isinstance(event, NewNode):
                self.state = reduce_all(self.state, news, now)
                decision = membership.step(self.state, event, now)
                self.state, news = decision.state, []
                actions.extend(decision.actions)
            else:
                news.append(event)
        self.state = reduce_all(self.state, news, now)
        decision = membership.decide(self.state, now)
        self.state = decision.state
        wake = min(decision.wake, self.rounds.due)
        self.wake = max(wake - self.zero, clock.now + 1e-6)
        self.alarm = token = object()
        clock.after(self.wake - clock.now, self._woken, token)
        self.todo.extend(actions)
        self.todo.extend(decision.actions)
        self._perform()

    def _woken(self, token: object) -> None:
        if token is self.alarm:
            self._turn()

    def _perform(self) -> None:
        clock = self.clock
        while self.todo and self.running and not self.blocked:
            action = self.todo.popleft()
            if clock.tracing:
                clock.log(self.name, f"-> {brief(action)}")
            self._count(type(action).__name__)
            match action:
                case ApplyTransaction(tag, transaction, first, also):
                    self.blocked = True
                    self._apply((tag, *also), (*first, transaction))
                case Look(wide, without):
                    self.client.look(wide, without)
                case Follow(own_key):
                    if own_key != self.client.wanted[0]:
                        self.client.follow(own_key)
                case Probe(node, _, port):
                    self.world.probe(self, node, port)
                case ReadMembers(sample):
                    self.rounds.ask(clock.now + self.zero, sample)
                    self.inbox.append(Tick())
                case ListParts(version):
                    if (seen := parts_seen(self.client.read, version)) is not None:
                        self.inbox.append(seen)
                case Notify(notice) if self.hung_at is not None:
                    self.unheard.append(notice)
                case Notify(notice):
                    self.agent.hear(notice)

    def _apply(self, tags: tuple[str, ...], left: tuple[Transaction, ...]) -> None:
        self.client.apply(left[0], partial(self.answered, tags, left[1:]))

    def answered(
        self, tags: tuple[str, ...], left: tuple[Transaction, ...], ok: bool | None
    ) -> None:
        """A transaction came to its end, and with it what comes before another one."""
        if ok and left:
            self.later(0.0, self._apply, tags, left)
            return
        why = "no answer" if ok is None else ""
        self.later(0.0, self._unblock, [Applied(tag, ok, why) for tag in tags])

    def _unblock(self, events: list[Applied]) -> None:
        self.blocked = False
        self.inbox.extend(events)
        self._perform()
        self._turn()

    def _count(self, what: str) -> None:
        second = int(self.clock.now)
        if second != self.second:
            self.second = second
            self.counts = dict.fromkeys(STORM, 0)
        number = self.counts[what] = self.counts.get(what, 0) + 1
        if number > STORM.get(what, 1000):
            raise Violation(f"{self.name}: more than {number - 1} × {what} within a second")


def answer_of(node: Node | None, uuid: str) -> str:
    """What a probe of this process finds."""
    if node is None or not node.alive:
        return REFUSED
    if node.paused_at is not None:
        return SILENT
    return ALIVE if node.uuid == uuid else OTHER
