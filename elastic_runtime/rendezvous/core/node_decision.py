"""``Decision``: what a node does next, as a value; and functions that make common ones.

Each function that decides takes the state and the moment, and returns a ``Decision``. What is
decided next builds on its state: ``decision.followed_by(rule(decision.state, now))``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.clock import NEVER
from elastic_runtime.limits import LOST_PROBE_AFTER
from elastic_runtime.protocol.records import GROUP
from elastic_runtime.rendezvous.core.actions import (
    Action,
    ApplyTransaction,
    Look,
    Probe,
    ReadMembers,
)
from elastic_runtime.rendezvous.core.notices import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.protocol.records import NodeRecord
    from elastic_runtime.protocol.round_records import Member, RoundRecord
    from elastic_runtime.rendezvous.core.node_state import NodeState
    from elastic_runtime.rendezvous.store_contract import Transaction

# Counts of nodes are shown one by one up to this one, and then each tenth more.
_EACH = 20
# Up to so many missing members of a broken round are each probed as often as a single one would be.
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
    if state.pending(tag, now):
        return Decision(state, wake=state.in_flight[tag].until, reason=reason)
    return Decision(
        state.with_pending(tag, NEVER), (ApplyTransaction(tag, transaction, first),), reason=reason
    )


@dataclass(frozen=True, slots=True)
class FirstProbes:
    """The first probes of a node come soon after each other, each after twice the time before it.

    A node that was killed this moment may still be seen to live.

    Attributes:
        since: when it began to be waited for.
        pause: the shortest one, in seconds.
    """

    since: float
    pause: float


def send_probes(
    state: NodeState,
    nodes: Iterable[Member | NodeRecord],
    every: float,
    now: float,
    first: FirstProbes | None = None,
) -> Decision:
    """Probes nodes, unless they are being probed, or were less than ``every`` seconds ago.

    Args:
        state: the present knowledge.
        nodes: which ones.
        every: the pause between two probes of a node, in seconds.
        now: seconds on the node's own monotonic clock.
        first: the first ones have shorter pauses; None: they have not.
    """

    def pause_after(sent: float) -> float:
        return min(every, max(first.pause, sent - first.since)) if first else every

    sent_now: dict[str, float] = {}
    actions: list[Action] = []
    wake, reach = NEVER, state.reach
    for target in nodes:
        node = target.node
        if not target.probe_port or node in reach.dead:
            continue
        sent = sent_now.get(node, reach.sent.get(node, float("-inf")))
        under_way = reach.answered.get(node, float("-inf")) < sent
        pause = pause_after(sent)
        due = sent + (max(pause, LOST_PROBE_AFTER) if under_way else pause)
        if due > now:
            wake = min(wake, due)
            continue
        actions.append(Probe(node, target.address, target.probe_port))
        wake = min(wake, now + pause_after(now))
        sent_now[node] = now
    if sent_now:
        state = replace(state, reach=replace(reach, sent={**reach.sent, **sent_now}))
    return Decision(state, tuple(actions), wake)


def probe_slowdown(missing: int) -> float:
    """By what factor probes of missing members are delayed and spread, by the number of those.

    When many are missing, most of them are merely not back yet, and a thousand probes would keep
    this node from hearing of them. A dead one is still missing when few are.
    """
    return max(1.0, missing / _FEW)


def ask_for_members(
    state: NodeState, last: RoundRecord, now: float, *, sample: bool = False
) -> Decision:
    """Asks for all members of a round of which this node knows only some, or for a sample."""
    if state.pending(GROUP, now):
        return Decision(state, wake=state.in_flight[GROUP].until)
    which = "the ones to probe" if sample else "all of them"
    again = now + _AGAIN
    reason = f"reading the members of round {last.number} ({which})"
    return Decision(state.with_pending(GROUP, again), (ReadMembers(sample),), again, reason)


def look(state: NodeState, *, wide: bool, without: frozenset[str]) -> Decision:
    """Asks to follow all nodes, or only the oldest one; until it is shown nothing is complete.

    Args:
        state: the present state.
        wide: all nodes.
        without: keys that are passed over in the search for the oldest.
    """
    shown = replace(state.shown, asked=(wide, without), complete=False)
    return Decision(replace(state, shown=shown), (Look(wide, without),))


def wait(
    state: NodeState,
    reason: str,
    have: int = 0,
    *,
    until: float = NEVER,
    counts: bool = True,
    outside: bool = False,
) -> Decision:
    """Notifies the agent of why nothing happens.

    Args:
        state: the present knowledge.
        reason: for people.
        have: how many nodes have registered.
        until: when to decide again at the latest.
        counts: the number of nodes is what it waits for.
        outside: the others train, and this node alone waits.
    """
    job, policy = state.job_record, state.policy
    low = job.min_nodes if job else policy.min_nodes
    high = job.max_nodes if job else policy.max_nodes
    # Once a round: a later one may wait for the same again.
    name = f"waiting/{state.history.last_number}/{reason}/{_rung(have)}"
    shown = (have, low) if counts else (0, 0)
    notice = Waiting(reason, *shown, high, outside)
    return Decision(state.with_notice(notice, once=name), wake=until, reason=reason)


def _rung(have: int) -> int:
    """The same for counts of which people need to see only one: nodes come by the thousand."""
    return have if have < _EACH else _EACH + round(math.log(have / _EACH, 1.1))
