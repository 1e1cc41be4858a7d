"""A simulated agent, which does with its workers what ``agent.lifecycle`` does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import FaultReport
from elastic_runtime.rendezvous.core.membership_events import (
    Done,
    Goodbye,
    Leaving,
    LeftRound,
    LookForMembers,
    RecoversInPlace,
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
from tests.model.clockwork import Violation

if TYPE_CHECKING:
    from elastic_runtime.protocol.round_records import RoundRecord
    from tests.model.node import Node

# What an agent acts upon.
_HEARD = Sealed | Switch | Excluded | Fenced | Ended | Conflict | StoreTimeout | Prepare | Surveyed


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
        said = self.node.state.goodbye_done(self.clock.now + self.node.zero)
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
        self.node.feed(Leaving())
        assert self.round is not None
        if self.phase == "stopping":
            return
        self._stop(
            FaultReport(self.round.number, records.ASKED, "asked to leave"),
            quick=self.clock.chance(0.5),
        )
