"""A simulated node: the real membership core, driven as ``participant`` drives it, and an agent
that does with its workers what ``agent.lifecycle`` does."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import FaultReport, NodeRecord
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
from elastic_runtime.rendezvous.core.events import (
    ALIVE,
    OTHER,
    REFUSED,
    SILENT,
    Applied,
    Done,
    DrainNode,
    Event,
    Goodbye,
    LeftRound,
    LookForMembers,
    NewNode,
    Probed,
    RecoversInPlace,
    Tick,
    WorkersAvailable,
)
from elastic_runtime.rendezvous.core.notices import (
    Conflict,
    Ended,
    Excluded,
    Fenced,
    Notice,
    Prepare,
    Sealed,
    StoreTimeout,
    Surveyed,
    Switch,
)
from elastic_runtime.rendezvous.core.reducer import reduce_all
from elastic_runtime.rendezvous.round_completer import RoundCompleter, parts_seen
from elastic_runtime.rendezvous.store_contract import LeaseLost, Lost, Transaction
from tests.model.clockwork import Violation
from tests.model.store import Client
from tests.model.trace import brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.protocol.round_records import RoundRecord
    from elastic_runtime.rendezvous.policy import Policy
    from tests.model.world import World

PROBE_TIMEOUT = 0.5
# What an agent acts upon.
_HEARD = Sealed | Switch | Excluded | Fenced | Ended | Conflict | StoreTimeout | Prepare | Surveyed
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
                case ApplyTransaction(tag, transaction, first):
                    self.blocked = True
                    self._apply(tag, (*first, transaction))
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

    def _apply(self, tag: str, left: tuple[Transaction, ...]) -> None:
        self.client.apply(left[0], partial(self.answered, tag, left[1:]))

    def answered(self, tag: str, left: tuple[Transaction, ...], ok: bool | None) -> None:
        """A transaction came to its end, and with it what comes before another one."""
        if ok and left:
            self.later(0.0, self._apply, tag, left)
            return
        self.later(0.0, self._unblock, Applied(tag, ok, "no answer" if ok is None else ""))

    def _unblock(self, event: Applied) -> None:
        self.blocked = False
        self.inbox.append(event)
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


class Agent:
    """What an agent does with its workers, in the order in which a real one does it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.clock = node.clock
        self.round: RoundRecord | None = None
        self.phase = "waiting"  # starting, running, stopping, done
        self.then = "rejoin"  # new life, leave, end
        self.asked = False
        self.code = ""
        self.began = 0.0
        self.lacking = False  # in place, its worker has not been replaced yet
        self.turn = 0  # tells delayed steps of an earlier round that they are late

    # -- notices

    def hear(self, notice: Notice) -> None:
        """Takes a notice, a moment later: the agent's loop is another thread."""
        if isinstance(notice, _HEARD):
            self.node.later(0.0002, self._take, notice)

    def _take(self, notice: Notice) -> None:
        match notice:
            case Sealed(round=sealed):
                self._sealed(sealed)
            case Switch(number, broken, reason):
                self._switch(number, broken, reason)
            case Surveyed(number, missed):
                self._surveyed(number, missed)
            case Excluded() | Fenced():
                self.node.world.fenced |= isinstance(notice, Fenced)
                if self.phase in ("starting", "running", "stopping"):
                    if self.then == "rejoin":
                        self.then = "new life"
                    self._stop(None, quick=True, killed=isinstance(notice, Fenced))
                elif self.then == "leave":
                    self._leave("left")
                else:
                    self._rejoin()
            case Ended(outcome):
                self.node.world.told_the_end(self.node, outcome)
                self._end_with("done" if outcome.succeeded else f"failed: {outcome.exit_code}")
            case Conflict():
                self._end_with("conflict")
            case StoreTimeout():
                self._end_with("store")
            case Prepare():
                self._replace()

    def _replace(self) -> None:
        """In place: a worker starts, and is ready for a round some time later."""
        self.node.later(self.clock.within(0.02, 2.0), self._ready)

    def _ready(self) -> None:
        self.lacking = False
        if self.phase != "over":
            self.node.feed(WorkersAvailable(1, self.node.port))

    def _end_with(self, code: str) -> None:
        self.then, self.code = "end", code
        if self.phase in ("starting", "running", "stopping"):
            self._stop(None, quick=True)
        else:
            self._leave(code)

    def _rejoin(self) -> None:
        self.phase, self.then, self.round = "waiting", "rejoin", None
        self.turn += 1
        self.node.join()

    def _leave(self, code: str) -> None:
        self.phase = "over"
        self.turn += 1
        self.code = code
        self.node.feed(Goodbye())
        self._check_goodbye(self.clock.now + 2.0)

    def _check_goodbye(self, deadline: float) -> None:
        said = self.node.state.parted(self.clock.now + self.node.zero)
        if said or self.clock.now > deadline:
            self.node.exit(self.code)
        else:
            self.node.later(0.01, self._check_goodbye, deadline)

    # -- a round

    def _sealed(self, sealed: RoundRecord) -> None:
        if self.phase != "waiting":
            return
        if self.lacking:
            raise Violation(f"{self.node.name} is sealed in, but has no worker")
        sealed = self.node.world.told_a_round(self.node, sealed)
        self.round, self.phase, self.then = sealed, "starting", "rejoin"
        self.turn += 1
        self.node.later(self.clock.within(0.001, 0.2), self._started, self.turn)

    def _started(self, turn: int) -> None:
        if turn != self.turn or self.phase != "starting":
            return
        assert self.round is not None
        self.phase = "running"
        self.began = self.clock.now
        self.clock.log(self.node.name, f"   workers of round {self.round.number} start")
        if self.node.world.in_place and not self.node.state.policy.in_place:
            self.node.feed(RecoversInPlace())
        self.node.world.workers_started(self.node, self.round)

    def _switch(self, number: int, broken: bool, reason: str) -> None:
        if self.round is None or number != self.round.number:
            return
        kind = records.ASKED if self.asked else records.PLANNED
        fault = FaultReport(number, kind, reason)
        if self.phase == "done":
            self._left(fault)
        elif self.phase in ("starting", "running"):
            self._stop(fault, quick=broken)

    def _stop(self, fault: FaultReport | None, *, quick: bool, killed: bool = False) -> None:
        if self.phase == "stopping":
            return
        slow = 0.3 if quick else 1.0
        delay = self.clock.within(0.001, slow if self.clock.chance(0.2) else 0.05)
        if not killed and self.clock.chance(self.node.world.stubborn):
            delay = self.clock.within(1.0, 5.0)
        self.phase = "stopping"
        self.turn += 1
        self.node.later(delay, self._stopped, self.turn, fault)

    def _stopped(self, turn: int, fault: FaultReport | None) -> None:
        if turn != self.turn:
            return
        assert self.round is not None
        self.clock.log(self.node.name, f"   workers of round {self.round.number} have ended")
        self.node.world.workers_ended(self.node, self.round)
        self._left(fault or FaultReport(self.round.number, records.PLANNED, "stopped"))

    def _left(self, fault: FaultReport, *, lost: bool = False) -> None:
        assert self.round is not None
        if self.then == "end":
            self._leave(self.code)
        elif self.then == "new life":
            self._rejoin()
        else:
            stays = self.then != "leave"
            fault = replace(
                fault,
                step=self.node.world.step_of(self.round),
                lifetime=self.clock.now - self.began if self.began else 0.0,
            )
            self.phase, number, self.round = "waiting", self.round.number, None
            in_place = self.node.world.in_place
            workers = (0 if lost else 1) if in_place else None
            self.node.feed(LeftRound(number, fault, self.node.port, stays, workers))
            if lost and stays and in_place:
                self.lacking = True
                self._replace()
            if not stays:
                self._leave("left")

    # -- what happens to workers

    def killed(self) -> None:
        """The process is gone, and with it the workers."""
        if self.round is not None and self.phase in ("starting", "running", "stopping"):
            self.node.world.workers_ended(self.node, self.round)
        self.phase = "over"
        self.turn += 1

    def worker_fails(self, kind: str, *, echo: bool, signature: str = "ValueError") -> None:
        """A worker ends badly; ``echo``: only because another one did."""
        if self.phase != "running" or self.round is None:
            return
        world, number = self.node.world, self.round.number
        self.clock.log(self.node.name, f"   a worker of round {number}: {kind}, echo {echo}")
        if not echo:
            world.note_failure(self.round, kind)
        self.turn += 1
        world.workers_ended(self.node, self.round)
        reason = "lost a peer" if echo else f"{kind}: {signature}"
        self._left(
            FaultReport(
                number,
                kind,
                reason,
                signature="" if echo else signature,
                consequence=echo,
            ),
            lost=not echo,
        )

    def worker_hears_of_loss(self, number: int) -> None:
        """A collective broke."""
        if self.round is not None and self.round.number == number:
            self.worker_fails(records.FAILED, echo=True)

    def doubt(self, number: int) -> None:
        """All workers wait for each other: the agent asks whether the others are in reach."""
        if self.phase == "running" and self.round is not None and self.round.number == number:
            self.node.feed(LookForMembers(number))

    def _surveyed(self, number: int, missed: tuple[str, ...]) -> None:
        if not missed or self.phase != "running" or self.round is None:
            return
        if self.round.number == number:
            reason = f"{self.node.name} does not reach {', '.join(missed)}"
            self._stop(
                FaultReport(
                    number, records.LOST, reason, signature=records.CUT_OFF, consequence=True
                ),
                quick=True,
            )

    def workers_finish(self, turn: int) -> None:
        """The script has ended well."""
        if turn != self.turn or self.phase != "running" or self.round is None:
            return
        self.clock.log(self.node.name, f"   workers of round {self.round.number} end well")
        self.phase = "done"
        self.node.world.workers_ended(self.node, self.round, well=True)
        self.node.feed(Done(self.round.number, self.node.world.step_of(self.round)))

    def sigterm(self) -> None:
        """The node is asked to leave."""
        if self.asked or self.phase == "over":
            return
        self.asked, self.then = True, "leave"
        if self.phase in ("waiting", "done"):
            self._leave("left")
            return
        self.node.feed(DrainNode())
        assert self.round is not None
        if self.phase == "stopping":
            return
        self._stop(
            FaultReport(self.round.number, records.ASKED, "asked to leave"),
            quick=self.clock.chance(0.5),
        )


def answer_of(node: Node | None, uuid: str) -> str:
    """What a probe of this process finds."""
    if node is None or not node.alive:
        return REFUSED
    if node.paused_at is not None:
        return SILENT
    return ALIVE if node.uuid == uuid else OTHER


def probed(node: str, answer: str) -> Probed:
    """The event."""
    return Probed(node, answer)
