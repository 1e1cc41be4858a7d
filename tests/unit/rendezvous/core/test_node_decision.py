"""Decisions are put together, and nothing is asked for twice."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.limits import LOST_PROBE_AFTER
from elastic_runtime.rendezvous.core.actions import ApplyTransaction, Probe
from elastic_runtime.rendezvous.core.membership_events import ALIVE, Probed
from elastic_runtime.rendezvous.core.node_decision import (
    Decision,
    FirstProbes,
    probe_slowdown,
    send_probes,
    write,
)
from elastic_runtime.rendezvous.core.node_state import NodeState
from elastic_runtime.rendezvous.core.reducer import reduce
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.store_contract import Put, Transaction
from tests.unit.rendezvous.node_under_test import node

STATE = NodeState(Policy())
NOW = 100.0
CHANGE = Transaction(puts=(Put("job", b"j"),))


def test_what_is_decided_next_follows_what_was_decided_before() -> None:
    first = Decision(STATE, (Probe("a", "h", 1),), NOW + 5, "first")
    later = replace(STATE, policy=Policy(max_nodes=2))
    both = first.followed_by(Decision(later, (Probe("b", "h", 2),), NOW + 9))
    assert [action.node for action in both.actions if isinstance(action, Probe)] == ["a", "b"]
    assert (both.state, both.wake, both.reason) == (later, NOW + 5, "first")
    assert both.followed_by(Decision(later, reason="last")).reason == "last"
    assert both.by(NOW + 2).wake == NOW + 2
    assert both.by(NOW + 7).wake == NOW + 5


def test_a_write_is_under_way_once() -> None:
    first = write(STATE, "job", CHANGE, NOW, "there is none")
    assert first.actions == (ApplyTransaction("job", CHANGE),)
    again = write(first.state, "job", CHANGE, NOW + 1, "there is none")
    assert (again.actions, again.reason) == ((), "there is none")
    assert write(first.state, "round", CHANGE, NOW + 1).actions, "another one is no obstacle"


def test_a_node_is_probed_again_only_after_a_while() -> None:
    first = send_probes(STATE, [node("a"), node("b", probe_port=0)], 2.0, NOW)
    assert [action.node for action in first.actions if isinstance(action, Probe)] == ["a"]
    assert first.wake == NOW + 2
    # Nothing has come of it yet: it may be slow.
    soon = send_probes(first.state, [node("a")], 2.0, NOW + 2)
    assert (soon.actions, soon.wake) == ((), NOW + LOST_PROBE_AFTER)
    reach = replace(first.state.reach, answered={"a": NOW + 1})
    answered = replace(first.state, reach=reach)
    assert send_probes(answered, [node("a")], 2.0, NOW + 2).actions
    dead = replace(answered, reach=replace(reach, dead={"a": "refused"}))
    assert not send_probes(dead, [node("a")], 2.0, NOW + 9).actions


def test_many_missing_members_are_probed_less_often() -> None:
    assert probe_slowdown(1) == probe_slowdown(64) == 1.0
    assert probe_slowdown(640) == 10.0


def test_a_node_that_is_killed_this_moment_is_probed_again_soon() -> None:
    """And then less and less often, as long as it is seen to live."""
    soon = FirstProbes(since=NOW, pause=0.01)
    state, now, sent = STATE, NOW + 0.01, []
    while now < NOW + 2:
        decision = send_probes(state, [node("a")], 0.25, now, soon)
        assert decision.actions
        assert decision.wake > now
        sent.append(round(now - NOW, 3))
        state = reduce(decision.state, Probed("a", ALIVE), now)
        assert not send_probes(state, [node("a")], 0.25, decision.wake - 1e-6, soon).actions
        now = decision.wake
    assert sent[:6] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
    assert sent[6:9] == [0.57, 0.82, 1.07]
