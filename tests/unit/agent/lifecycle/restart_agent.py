"""A lifecycle whose workers are started for each round, fed with events one by one."""

from __future__ import annotations

from typing import TypeVar

from elastic_runtime.agent.lifecycle import lifecycle_step
from elastic_runtime.agent.lifecycle.fault_classification import WorkerError, classify
from elastic_runtime.agent.lifecycle.lifecycle_state import AgentState, LifecycleSettings
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    ForkServerReady,
    LifecycleEvent,
    TellRendezvous,
    WorkerExited,
    WorkerSaid,
)
from elastic_runtime.protocol import messages
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.notices import (
    Sealed,
    StoreState,
)

SETTINGS = LifecycleSettings(workers=2)


A = TypeVar("A")


def make_round(number: int) -> RoundRecord:
    members = (Member("a", "a", "127.0.0.1", 2), Member("b", "b", "127.0.0.1", 2))
    return RoundRecord(number, "life", members, 4000, "because")


def killed(local_rank: int, number: int = 1) -> WorkerExited:
    return WorkerExited(number, local_rank, -9, fault=classify(number, local_rank, -9, None))


def failed(local_rank: int, text: str, number: int = 1) -> WorkerExited:
    fault = classify(number, local_rank, 1, WorkerError(text))
    return WorkerExited(number, local_rank, 1, fault=fault)


def ended_by_us(local_rank: int, number: int = 1) -> WorkerExited:
    return WorkerExited(number, local_rank, -15, fault=classify(number, local_rank, -15, None))


def hello(number: int, local_rank: int, can: bool = True) -> WorkerSaid:
    return WorkerSaid(local_rank, messages.Hello(local_rank, number, 1, drains=can))


class Walk:
    """Plays events and remembers the actions of the last one."""

    def __init__(self, *events: LifecycleEvent, state: AgentState | None = None) -> None:
        first = lifecycle_step.begin(SETTINGS)
        self.state = state or first.state
        self.actions: tuple[Action, ...] = first.actions
        self.play(*events)

    def play(self, *events: LifecycleEvent, now: float = 100.0) -> Walk:
        for event in events:
            step = lifecycle_step.step(self.state, event, now)
            self.state, self.actions = step.state, step.actions
        return self

    def one(self, kind: type[A]) -> A:
        (found,) = [action for action in self.actions if isinstance(action, kind)]
        return found

    def said(self, kind: type[A]) -> A:
        events = [action.event for action in self.actions if isinstance(action, TellRendezvous)]
        (found,) = [event for event in events if isinstance(event, kind)]
        return found

    def unsaid(self, kind: type) -> bool:
        said = [action.event for action in self.actions if isinstance(action, TellRendezvous)]
        return not any(isinstance(event, kind) for event in said)

    def none(self, *kinds: type) -> bool:
        return not any(isinstance(action, kinds) for action in self.actions)


def running(*events: LifecycleEvent) -> Walk:
    return Walk(ForkServerReady(), StoreState(True), Sealed(make_round(1), 0), *events)
