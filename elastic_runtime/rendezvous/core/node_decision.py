"""What follows from what a node knows, as a value; and the ways to ask for something.

Each function that decides takes the state and the moment, and returns a ``Decision``. What is
decided next builds on its state: ``decision.followed_by(rule(decision.state, now))``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import GROUP
from elastic_runtime.rendezvous.core.actions import Action, ApplyTransaction, Probe, ReadMembers
from elastic_runtime.rendezvous.core.notices import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.protocol.records import NodeRecord
    from elastic_runtime.protocol.round_records import Member, RoundRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState
    from elastic_runtime.rendezvous.store_contract import Transaction

NEVER = float("inf")
# A probe that has not come to its end by then was lost with the thread that sent it (seconds).
LONGEST_PROBE = 5.0
# Each count is told up to this one, and then the next tenth.
_EACH = 20
# So many members of a broken round are probed as often as a single one, while they are not back.
_FEW = 64
# How often all members of a round are asked for, while they are not known (seconds).
_AGAIN = 1.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows.

    Attributes:
        state: the new knowledge.
        actions: to be performed in this order.
        wake: when to decide again at the latest, without any event (our clock).
        reason: why, or why nothing is done.
    """

    state: NodeState
    actions: tuple[Action, ...] = ()
    wake: float = NEVER
    reason: str = ""

    def followed_by(self, after: Decision) -> Decision:
        """This, and what was decided next on its state."""
        return Decision(
            after.state,
            self.actions + after.actions,
            min(self.wake, after.wake),
            after.reason or self.reason,
        )

    def because(self, reason: str) -> Decision:
        """The same, for this reason."""
        return replace(self, reason=reason)

    def by(self, moment: float) -> Decision:
        """The same, to be looked at again at this moment at the latest."""
        return replace(self, wake=min(self.wake, moment))


def write(
    state: NodeState,
    tag: str,
    transaction: Transaction,
    now: float,
    reason: str = "",
    first: tuple[Transaction, ...] = (),
) -> Decision:
    """Performs a transaction, unless one with this tag is under way or has just failed."""
    if state.held(tag, now):
        return Decision(state, wake=state.in_flight[tag].until, reason=reason)
    return Decision(
        state.hold(tag, NEVER), (ApplyTransaction(tag, transaction, first),), reason=reason
    )


def probe(
    state: NodeState, nodes: Iterable[Member | NodeRecord], every: float, now: float
) -> Decision:
    """Probes nodes, unless they were less than ``every`` seconds ago, or are being probed."""
    sent_now: dict[str, float] = {}
    actions: list[Action] = []
    wake, reach = NEVER, state.reach
    for target in nodes:
        node = target.node
        if not target.probe_port or node in reach.dead:
            continue
        sent = sent_now.get(node, reach.sent.get(node, float("-inf")))
        under_way = reach.answered.get(node, float("-inf")) < sent
        due = sent + (max(every, LONGEST_PROBE) if under_way else every)
        if due > now:
            wake = min(wake, due)
            continue
        actions.append(Probe(node, target.address, target.probe_port))
        wake = min(wake, now + every)
        sent_now[node] = now
    if sent_now:
        state = replace(state, reach=replace(reach, sent={**reach.sent, **sent_now}))
    return Decision(state, tuple(actions), wake)


def probe_slowdown(missing: int) -> float:
    """How much later and more seldom members are probed that are not back, for their number.

    The more are missing, the more of them are merely not back yet: a thousand probes would keep
    this node from hearing of them. Who is dead is missing still when few are.
    """
    return max(1.0, missing / _FEW)


def ask_for_members(
    state: NodeState, last: RoundRecord, now: float, *, sample: bool = False
) -> Decision:
    """Asks for all members of a round of which this node knows only some, or for a sample."""
    if state.held(GROUP, now):
        return Decision(state, wake=state.in_flight[GROUP].until)
    which = "those to be looked for" if sample else "all members"
    again = now + _AGAIN
    reason = f"{which} of round {last.number} are asked for"
    return Decision(state.hold(GROUP, again), (ReadMembers(sample),), again, reason)


def wait(
    state: NodeState,
    reason: str,
    have: int = 0,
    *,
    until: float = NEVER,
    counts: bool = True,
    outside: bool = False,
) -> Decision:
    """Tells the agent why nothing happens.

    Args:
        state: the present knowledge.
        reason: for people.
        have: how many nodes are there.
        until: when to decide again at the latest.
        counts: it is for a lack of nodes.
        outside: the others train, and this node alone waits.
    """
    job, policy = state.job_record, state.policy
    low = job.min_nodes if job else policy.min_nodes
    high = job.max_nodes if job else policy.max_nodes
    # Once a round: a later one may wait for the same again.
    name = f"waiting/{state.history.last_number}/{reason}/{_rung(have)}"
    shown = (have, low) if counts else (0, 0)
    notice = Waiting(reason, *shown, high, outside)
    return Decision(state.tell(notice, once=name), wake=until, reason=reason)


def _rung(have: int) -> int:
    """Alike for counts of which people need to see one: thousands of nodes come one by one."""
    return have if have < _EACH else _EACH + round(math.log(have / _EACH, 1.1))
