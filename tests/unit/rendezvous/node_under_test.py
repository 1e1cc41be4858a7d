"""One node of the rendezvous, to be shown stores of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import (
    FaultReport,
    JobRecord,
    NodeRecord,
    Record,
    SwitchRecord,
    node_key,
)
from elastic_runtime.protocol.round_records import Budget, Member, RoundRecord
from elastic_runtime.rendezvous.core import membership
from elastic_runtime.rendezvous.core.actions import Action, ApplyTransaction, Notify, Probe
from elastic_runtime.rendezvous.core.membership_events import Event, NewNode, Probed, Tick
from elastic_runtime.rendezvous.core.node_state import OWN
from elastic_runtime.rendezvous.core.notices import Sealed
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    StoreEntry,
    StoreSnapshot,
    Transaction,
)

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.node_state import NodeState

POLICY = Policy(min_nodes=1, max_nodes=4, entry="train.py", max_restarts=3)
LIFE = "life"

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Record)


def node(name: str, /, **fields: object) -> NodeRecord:
    """A node's record; its port tells it apart."""
    port = 1000 + ord(name[0])
    record = NodeRecord(name, name, "127.0.0.1", 1, probe_port=port, store_port=port, settings="s")
    return replace(record, **fields)  # type: ignore[arg-type]


def back(name: str, number: int, fault: FaultReport | None = None, **fields: object) -> NodeRecord:
    """A member that has left this round and wants to be in the next."""
    fault = fault or FaultReport(number, records.PLANNED, "told to")
    return node(name, incarnation=LIFE, left=number, fault=fault, **fields)


def job(low: int = 1, high: int = 4, unit: int = 1, **fields: object) -> JobRecord:
    """The job's record."""
    record = JobRecord(LIFE, low, high, low, high, unit, "train.py", settings="s")
    return replace(record, **fields)  # type: ignore[arg-type]


def sealed(number: int, *names: str, **fields: object) -> RoundRecord:
    """A round of these nodes."""
    members = tuple(Member(n, n, "127.0.0.1", 1, 1000 + ord(n[0])) for n in names)
    record = RoundRecord(number, LIFE, members, 4000, "because", Budget())
    return replace(record, **fields)  # type: ignore[arg-type]


def switch(number: int, *, broken: bool, survey: bool = False) -> SwitchRecord:
    """The order to leave this round."""
    return SwitchRecord(number, LIFE, broken, "it must be", survey)


class NodeUnderTest:
    """One node.

    Args:
        name: its uuid; in ``sees``, its own record says whether it is registered.
        policy: its settings.
    """

    def __init__(self, name: str = "a", policy: Policy = POLICY) -> None:
        self.name = name
        self.now = 100.0
        self.version = 0
        self.state: NodeState = membership.begin(policy)
        self.actions: list[Action] = []
        self.wake = float("inf")
        self.feed(NewNode(node(name)))

    def feed(self, event: Event, after: float = 0.0) -> NodeUnderTest:
        """Something happens, ``after`` so many seconds."""
        self.now += after
        decision = membership.step(self.state, event, self.now)
        self.state, self.actions = decision.state, list(decision.actions)
        self.wake = decision.wake
        return self

    def sees(self, *shown: Record, wide: bool = True, forgot: bool = False) -> NodeUnderTest:
        """A snapshot shows these records; the nodes among them from the oldest to the youngest."""
        return self.feed(StoreSnapshot(self._entries(shown), wide, forgot))

    def changes(
        self, *shown: Record, gone: tuple[str, ...] = (), after: float = 0.0
    ) -> NodeUnderTest:
        """A change shows these."""
        return self.feed(Changed(self._entries(shown), gone), after)

    def later(self, seconds: float = 0.0) -> NodeUnderTest:
        """Nothing happens for so long."""
        return self.feed(Tick(), seconds)

    def probed(self, name: str, answer: str, after: float = 0.0) -> NodeUnderTest:
        """A probe of a node had this answer."""
        return self.feed(Probed(name, answer), after)

    def settle(self) -> NodeUnderTest:
        """Contact has been there for long."""
        return self.regained(float("-inf"))

    def regained(self, at: float) -> NodeUnderTest:
        """Contact was regained at this moment."""
        self.state = replace(self.state, contact=replace(self.state.contact, regained_at=at))
        return self

    def wants(self, record: NodeRecord) -> NodeUnderTest:
        """The node wants to be stored like this."""
        self.state = replace(self.state, own=replace(self.state.own, record=record))
        return self

    def _entries(self, shown: tuple[Record, ...]) -> tuple[StoreEntry, ...]:
        entries = []
        for record in shown:
            self.version += 1
            entries.append(
                StoreEntry(key_of(record), record.encode(), self._created(record), self.version)
            )
        return tuple(entries)

    def _created(self, record: Record) -> int:
        if not isinstance(record, NodeRecord):
            return self.version
        if record.node == self.name and self.state.own.created:
            return self.state.own.created
        known = self.state.shown.peers.get(record.node)
        return known.created if known else self.version

    @property
    def own(self) -> NodeRecord:
        """What the node wants to be stored of itself."""
        assert self.state.own.record is not None
        return self.state.own.record

    # -- what it does

    def told(self, kind: type[_T]) -> list[_T]:
        """Notices of this kind in the last decision."""
        notices = [action.notice for action in self.actions if isinstance(action, Notify)]
        return [notice for notice in notices if isinstance(notice, kind)]

    def probes(self) -> list[str]:
        """Whom the last decision probes."""
        return [action.node for action in self.actions if isinstance(action, Probe)]

    def transaction(self, tag: str) -> Transaction | None:
        """The transaction with this tag in the last decision."""
        found = [
            it.transaction
            for it in self.actions
            if isinstance(it, ApplyTransaction) and it.tag == tag
        ]
        return found[0] if found else None

    def request(self, tag: str) -> Transaction:
        """The transaction with this tag, which there has to be."""
        found = self.transaction(tag)
        assert found is not None, f"nothing is written under {tag!r}"
        return found

    def written(self, cls: type[_R], tag: str = "") -> _R | None:
        """The record of this kind that the last decision writes, under the usual tag of its kind
        or another one."""
        transaction = self.transaction(tag or _KEYS.get(cls, OWN))
        puts = transaction.puts if transaction else ()
        found = [put for put in puts if put.key == _KEYS.get(cls, put.key)]
        return cls.decode(found[0].key, found[0].value) if found else None

    def wrote(self, cls: type[_R], tag: str = "") -> _R:
        """The same, which there has to be."""
        found = self.written(cls, tag)
        assert found is not None, f"no {cls.__name__} is written"
        return found

    def shows(self) -> NodeRecord | None:
        """What the node writes about itself in its last decision."""
        return self.written(NodeRecord)

    def members(self) -> list[str]:
        """The members of the round that the last decision seals; empty: it seals none."""
        record = self.written(RoundRecord)
        return [member.node for member in record.members] if record else []


_KEYS: dict[type[Record], str] = {
    JobRecord: records.JOB,
    RoundRecord: records.ROUND,
    SwitchRecord: records.SWITCH,
    records.OutcomeRecord: records.OUTCOME,
}


def key_of(record: Record) -> str:
    """Where a record lies."""
    return node_key(record.node) if isinstance(record, NodeRecord) else _KEYS[type(record)]


def member() -> NodeUnderTest:
    """Node b, which runs round 3 of a and b; a leads."""
    shown = (job(), sealed(3, "a", "b"), node("a"), node("b"))
    tested = NodeUnderTest("b").sees(*shown, wide=False)
    assert tested.told(Sealed)
    return tested
