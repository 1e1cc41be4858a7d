"""Participants of a job whose rounds lie in parts, over a real store."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_runtime.config import Timeouts
from elastic_runtime.protocol.records import GROUP, PLANNED, FaultReport
from elastic_runtime.rendezvous.core.membership_events import Join, LeftRound
from elastic_runtime.rendezvous.core.notices import Excluded, Notice, Sealed, Surveyed, Switch
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Layout, Policy
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from elastic_runtime.rendezvous.store_contract import Store, StoreEntry

NODES = 12
TTL = 60.0
LAYOUT = Layout(most=4, part=2, first=2, keepers=3)


@dataclass
class Job:
    """A job of twelve nodes.

    Attributes:
        store: makes a node's store.
        read: reads what lies under a prefix.
        settle: as in ``Policy``.
    """

    store: Callable[[], Store]
    read: Callable[[str], Iterable[StoreEntry]]
    settle: float = 0.5
    parts: list[Participant] = field(default_factory=list)
    sealed: dict[int, dict[str, Sealed]] = field(default_factory=dict)
    surveyed: list[Surveyed] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    excluded: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self) -> Participant:
        """One node more, which does at once what it is told to."""
        number = len(self.parts)

        def hear(notice: Notice) -> None:
            with self.lock:
                match notice:
                    case Sealed(last, _):
                        self.sealed.setdefault(last.number, {})[part.node] = notice
                    case Switch(number, _, reason):
                        self.reasons.add(reason)
                        part.say(LeftRound(number, FaultReport(number, PLANNED, reason)))
                    case Surveyed():
                        self.surveyed.append(notice)
                    case Excluded(reason):
                        self.excluded.append(reason)

        timeouts = Timeouts(last_call=60.0, join_batch=0.1)
        few = Policy(min_nodes=1, max_nodes=NODES, timeouts=timeouts, layout=LAYOUT)
        identity = NodeIdentity(f"n{number}", "127.0.0.1", 1 + number % 3)
        part = Participant(self.store(), replace(few, settle=self.settle), identity, hear)
        self.parts.append(part)
        part.say(Join(1))
        return part

    def wait(self, number: int, size: int) -> dict[str, Sealed]:
        """Waits until all members are in this round, and checks that they agree about it."""
        wait_for(lambda: len(self.sealed.get(number, {})) == size, 60, f"round {number}")
        seen = self.sealed[number]
        assert len({one.round.identity for one in seen.values()}) == 1
        places = sorted(
            (
                one.group_rank,
                one.round.first_worker(one.group_rank),
                one.round.member(one.group_rank).workers,
            )
            for one in seen.values()
        )
        assert [rank for rank, _, _ in places] == list(range(size))
        ends = [first + workers for _, first, workers in places]
        assert [first for _, first, _ in places] == [0, *ends[:-1]]
        assert {one.round.world_size for one in seen.values()} == {ends[-1]}
        return seen

    def of(self, number: int, chosen: Callable[[Sealed], bool]) -> list[Participant]:
        """The nodes that this holds for, of a round."""
        seen = self.sealed[number]
        return [part for part in self.parts if part.node in seen and chosen(seen[part.node])]

    def kill(self, some: Iterable[Participant]) -> None:
        """These nodes are gone."""
        for part in some:
            self.parts.remove(part)
            part.close()

    def groups(self) -> set[str]:
        """The keys of all parts in the store."""
        return {entry.key for entry in self.read(GROUP)}
