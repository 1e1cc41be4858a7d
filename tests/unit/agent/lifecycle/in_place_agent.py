"""A lifecycle in place, fed with events one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_runtime.agent.lifecycle import hang_detection, lifecycle_step
from elastic_runtime.agent.lifecycle.fault_classification import WITH_SERVER
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
from elastic_runtime.protocol.messages import (
    Dismiss,
    Heard,
    Hello,
    Left,
    Ready,
    Returned,
    Trained,
)
from elastic_runtime.protocol.records import KILLED, FaultReport
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.notices import (
    Sealed,
    StoreState,
)

SETTINGS = LifecycleSettings(workers=2)


def sealed(number: int, workers: int = 2, others: int = 1) -> Sealed:
    me = Member("me", "a", "127.0.0.1", workers, 1, 4000)
    rest = tuple(Member(f"n{i}", f"n{i}", "127.0.0.1", 2, 1, 4001 + i) for i in range(others))
    return Sealed(RoundRecord(number, "incarnation", (me, *rest), 4000, "why"), 0)


class InPlaceAgent:
    """Feeds events to the lifecycle and remembers what it asked for last."""

    def __init__(self, settings: LifecycleSettings = SETTINGS) -> None:
        step = lifecycle_step.begin(settings)
        self.state: AgentState = step.state
        self.actions = step.actions
        self.now = 100.0

    def take(self, event: Any) -> list[Any]:
        if isinstance(event, hang_detection.Finding):
            step = hang_detection.act_on(self.state, event, self.now)
        else:
            step = lifecycle_step.step(self.state, event, self.now)
        self.state, self.actions = step.state, step.actions
        return list(step.actions)

    def asked(self, kind: type) -> list[Any]:
        return [action for action in self.actions if isinstance(action, kind)]

    def told(self, kind: type) -> list[Any]:
        """What workers were told, of this kind of message."""
        return [one for one in self.asked(TellWorkers) if isinstance(one.message, kind)]

    def said(self, kind: type) -> list[Any]:
        """What the rendezvous was told, of this kind of event."""
        events = [one.event for one in self.asked(TellRendezvous)]
        return [event for event in events if isinstance(event, kind)]

    def saves(self) -> int | None:
        """Which worker saves by itself, of those that were dismissed; None: none does."""
        dismissed = self.told(Dismiss)
        assert dismissed
        return next((one.local_ranks[0] for one in dismissed if one.message.saves), None)

    def in_round(self) -> InPlaceAgent:
        """Brings two workers into round 1 by way of a plain start."""
        for event in (ForkServerReady(), StoreState(True), sealed(1), ready(0), ready(1)):
            self.take(event)
        assert self.state.ranks_in(WorkerPhase.IN_ROUND) == (0, 1)
        return self


def killed(number: int, local_rank: int) -> WorkerExited:
    fault = FaultReport(number, KILLED, f"worker {local_rank} was killed", rank=local_rank)
    return WorkerExited(number, local_rank, -9, fault=fault)


def with_server(number: int, local_rank: int) -> WorkerExited:
    gone = killed(number, local_rank)
    assert gone.fault is not None
    return replace(gone, fault=replace(gone.fault, signature=WITH_SERVER))


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


def answered(local_rank: int, collective: bool, where: str, busy: str) -> WorkerSaid:
    return WorkerSaid(local_rank, Heard(collective, where, busy))
