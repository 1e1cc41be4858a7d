"""One step of a node: what has happened is taken in, then decided on, then told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.limits import LONGEST_WAIT
from elastic_runtime.protocol.records import node_key
from elastic_runtime.rendezvous.core import membership
from elastic_runtime.rendezvous.core.actions import Follow, Notify
from elastic_runtime.rendezvous.core.membership_events import NewNode
from elastic_runtime.rendezvous.core.node_decision import Decision
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.store_contract import StoreSnapshot
from tests.unit.rendezvous.node_under_test import node

if TYPE_CHECKING:
    import pytest

NOW = 100.0


def test_a_node_follows_its_own_key_before_all_else() -> None:
    decision = membership.step(membership.begin(Policy()), NewNode(node("a")), NOW)
    assert decision.actions[0] == Follow(node_key("a"))


def test_no_wait_lasts_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("decide_for_own_node", "lead"):  # nothing is to be done
        monkeypatch.setattr(membership, rule, lambda state, now: Decision(state))
    assert membership.decide(membership.begin(Policy()), NOW).wake == NOW + LONGEST_WAIT


def test_what_people_and_agents_are_told_is_told_once() -> None:
    state = membership.step(membership.begin(Policy()), NewNode(node("a")), NOW).state
    told = membership.step(state, StoreSnapshot((), True), NOW)
    assert [action for action in told.actions if isinstance(action, Notify)]
    assert told.state.notices == ()
    again = membership.decide(told.state, NOW)
    assert not [action for action in again.actions if isinstance(action, Notify)]
