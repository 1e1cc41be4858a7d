"""Lifecycles that are fed with events one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from elastic_runtime.agent.lifecycle import hang_detection, lifecycle_step
from elastic_runtime.agent.lifecycle.fault_classification import WITH_SERVER, WorkerError, classify
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AgentState,
    LifecycleSettings,
    WorkerPhase,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    ForkServerReady,
    TellRendezvous,
    TellWorkers,
    WorkerExited,
    WorkerSaid,
)
from elastic_runtime.protocol.messages import Dismiss, Heard, Hello, Left, Ready, Returned, Trained
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.notices import Sealed, StoreState, Switch

SETTINGS = LifecycleSettings(workers=2)
BREAKS = Switch(1, broken=True, reason="node b lost")
A = TypeVar("A")


def make_round(number: int, workers: int = 2) -> RoundRecord:
    members = (Member("a", "a", "127.0.0.1", workers, 1, 4000), Member("b", "b", "127.0.0.1", 2))
    return RoundRecord(number, "life", members, 4000, "because")


def sealed(number: int, workers: int = 2) -> Sealed:
    return Sealed(make_round(number, workers), 0)


class Walk:
    """Plays events and remembers the actions of the last one."""

    def __init__(self, *events: Any, settings: LifecycleSettings = SETTINGS) -> None:
        first = lifecycle_step.begin(settings)
        self.state: AgentState = first.state
        self.actions = first.actions
        self.now = 100.0
        self.play(*events)

    def play(self, *events: Any, now: float | None = None) -> Walk:
        self.now = self.now if now is None else now
        for event in events:
            if isinstance(event, hang_detection.Finding):
                step = hang_detection.act_on(self.state, event, self.now)
            else:
                step = lifecycle_step.step(self.state, event, self.now)
            self.state, self.actions = step.state, step.actions
        return self

    def asked(self, *kinds: type) -> list[Any]:
        return [action for action in self.actions if isinstance(action, kinds)]

    def one(self, kind: type[A]) -> A:
        """The only action of this kind."""
        (found,) = self.asked(kind)
        return found  # type: ignore[no-any-return]

    def told(self, kind: type) -> list[Any]:
        """What workers were told, of this kind of message."""
        return [one for one in self.asked(TellWorkers) if isinstance(one.message, kind)]

    def said(self, kind: type) -> list[Any]:
        """What the rendezvous was told, of this kind of event."""
        events = [one.event for one in self.asked(TellRendezvous)]
        return [event for event in events if isinstance(event, kind)]

    def one_said(self, kind: type[A]) -> A:
        """The only event of this kind that the rendezvous was told."""
        (found,) = self.said(kind)
        return found  # type: ignore[no-any-return]

    def saves(self) -> int | None:
        """Which worker saves by itself, of those that were dismissed; None: none does."""
        dismissed = self.told(Dismiss)
        assert dismissed
        return next((one.local_ranks[0] for one in dismissed if one.message.saves), None)


def running(*events: Any) -> Walk:
    """Two workers that were started for round 1."""
    return Walk(ForkServerReady(), StoreState(True), sealed(1), *events)


def can_leave(*events: Any) -> Walk:
    """Such workers, which can leave at a step of theirs."""
    return running(hello(1, 0), hello(1, 1), *events)


def in_round(*events: Any, settings: LifecycleSettings = SETTINGS) -> Walk:
    """Workers in place in round 1, by way of a plain start."""
    ranks = tuple(range(settings.workers))
    begun = (ForkServerReady(), StoreState(True), sealed(1, settings.workers), *map(ready, ranks))
    agent = Walk(*begun, settings=settings)
    assert agent.state.ranks_in(WorkerPhase.IN_ROUND) == ranks
    return agent.play(*events)


def killed(local_rank: int, number: int = 1) -> WorkerExited:
    return WorkerExited(number, local_rank, -9, fault=classify(number, local_rank, -9, None))


def with_server(local_rank: int) -> WorkerExited:
    gone = killed(local_rank)
    assert gone.fault is not None
    return replace(gone, fault=replace(gone.fault, signature=WITH_SERVER))


def failed(local_rank: int, text: str, number: int = 1) -> WorkerExited:
    fault = classify(number, local_rank, 1, WorkerError(text))
    return WorkerExited(number, local_rank, 1, fault=fault)


def ended_by_us(local_rank: int, number: int = 1) -> WorkerExited:
    return WorkerExited(number, local_rank, -15, fault=classify(number, local_rank, -15, None))


def left_at_step(local_rank: int) -> WorkerExited:
    return WorkerExited(1, local_rank, 79, left_at_step=True)


def left(
    number: int, local_rank: int, *, planned: bool = False, released: bool = True
) -> WorkerSaid:
    reason = "the connection to a peer is lost"
    return WorkerSaid(local_rank, Left(number, 7, planned, reason, released))


def hello(number: int, local_rank: int, can: bool = True) -> WorkerSaid:
    return WorkerSaid(local_rank, Hello(local_rank, number, 1, drains=can))


def ready(local_rank: int) -> WorkerSaid:
    return WorkerSaid(local_rank, Ready())


def trained(local_rank: int, number: int) -> WorkerSaid:
    return WorkerSaid(local_rank, Trained(number))


def returned(local_rank: int, number: int) -> WorkerSaid:
    return WorkerSaid(local_rank, Returned(number))


def answered(local_rank: int, collective: bool, where: str, busy: str = "") -> WorkerSaid:
    return WorkerSaid(local_rank, Heard(collective, where, busy))
