"""What one decision asks for, collected."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import GROUP
from elastic_runtime.rendezvous.core.node_state import (
    Action,
    Apply,
    Complete,
    Probe,
    State,
)
from elastic_runtime.rendezvous.core.notices import Waiting

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import Member, NodeRecord, RoundRecord
    from elastic_runtime.rendezvous.store_contract import Transaction


# A probe that has not come to its end by then was lost with the thread that sent it (seconds).
LONGEST_PROBE = 5.0
# Each count is told up to this one, and then the next tenth.
_EACH = 20
# So many members of a broken round are probed as often as a single one, while they are not back.
_FEW = 64
# How often all members of a round are asked for, while they are not known (seconds).
_AGAIN = 1.0


def _rung(have: int) -> int:
    """Alike for counts of which people need to see one: thousands of nodes come one by one."""
    return have if have < _EACH else _EACH + round(math.log(have / _EACH, 1.1))


def crowded(missing: int) -> float:
    """How much later and more seldom members are probed that are not back, for their number.

    The more are missing, the more of them are merely not back yet: a thousand probes would keep
    this node from hearing of them. Who is dead is missing still when few are.
    """
    return max(1.0, missing / _FEW)


@dataclass
class Plan:
    """Collects what a decision asks for.

    Attributes:
        actions: to be performed in this order.
        probed: which nodes are probed, and when (now).
        wake: when the next decision is due at the latest, without any event.
        reason: why; the last one given.
    """

    actions: list[Action] = field(default_factory=list)
    probed: dict[str, float] = field(default_factory=dict)
    wake: float = float("inf")
    reason: str = ""

    def wake_at(self, moment: float) -> None:
        """Asks for another decision at this moment."""
        self.wake = min(self.wake, moment)

    def apply(
        self,
        state: State,
        tag: str,
        transaction: Transaction,
        now: float,
        first: tuple[Transaction, ...] = (),
    ) -> State:
        """Performs a transaction, unless one with this tag is under way or has just failed."""
        if state.held(tag, now):
            self.wake_at(state.holds[tag])
            return state
        self.actions.append(Apply(tag, transaction, first))
        return replace(state, holds={**state.holds, tag: float("inf")})

    def probe(self, state: State, member: Member | NodeRecord, every: float, now: float) -> State:
        """Probes a node, unless it was probed less than ``every`` seconds ago, or is being."""
        node = member.node
        if not member.probe_port or node in state.dead:
            return state
        sent = self.probed.get(node, state.probed.get(node, float("-inf")))
        under_way = state.heard.get(node, float("-inf")) < sent
        due = sent + (max(every, LONGEST_PROBE) if under_way else every)
        if due > now:
            self.wake_at(due)
            return state
        self.actions.append(Probe(node, member.address, member.probe_port))
        self.wake_at(now + every)
        self.probed[node] = now
        return state

    def know_all(self, state: State, last: RoundRecord, now: float, *, near: bool = False) -> State:
        """Asks for all members of a round of which this node knows only some, or some more."""
        if state.held(GROUP, now):
            self.wake_at(state.holds[GROUP])
            return state
        which = "those to be looked for" if near else "all members"
        self.reason = f"{which} of round {last.number} are asked for"
        self.actions.append(Complete(near))
        self.wake_at(now + _AGAIN)
        return replace(state, holds={**state.holds, GROUP: now + _AGAIN})

    def wait(
        self,
        state: State,
        reason: str,
        have: int = 0,
        *,
        counts: bool = True,
        outside: bool = False,
    ) -> State:
        """Says why nothing happens; not ``counts``: it is not for a lack of nodes; ``outside``:
        the others train, and this node alone waits."""
        self.reason = reason
        job, policy = state.job_record, state.policy
        low = job.min_nodes if job else policy.min_nodes
        high = job.max_nodes if job else policy.max_nodes
        # Once a round: a later one may wait for the same again.
        name = f"waiting/{state.last_number}/{reason}/{_rung(have)}"
        shown = (have, low) if counts else (0, 0)
        notice = Waiting(reason, *shown, high, outside)
        return state.tell(notice, once=name)
