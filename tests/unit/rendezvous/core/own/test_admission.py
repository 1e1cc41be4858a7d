"""When a node may register: whom it has to reach before, and whose job it finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import (
    JOB,
    FaultReport,
    JobRecord,
    NodeRecord,
)
from elastic_runtime.rendezvous.core.actions import Look
from elastic_runtime.rendezvous.core.membership_events import (
    ALIVE,
    BUSY,
    REFUSED,
    SILENT,
    LeftRound,
    NewNode,
    Probed,
    Tick,
)
from elastic_runtime.rendezvous.core.notices import (
    Conflict,
    Waiting,
)
from tests.unit.rendezvous.node_under_test import (
    POLICY,
    NodeUnderTest,
    back,
    job,
    member,
    node,
    own_record,
    sealed,
)


def test_a_joiner_reaches_the_group_before_it_shows_itself() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "b", "a"), node("a"), wide=False)
    assert (own_record(tested), sorted(tested.probes())) == (None, ["a", "b"])
    tested.feed(Probed("a", BUSY), 0.001).feed(Probed("b", SILENT), 0.5)
    (waiting,) = tested.told(Waiting)
    assert waiting.reason == "cannot reach b at 127.0.0.1:1098"
    assert own_record(tested) is None
    # Its key is there, so it may be alive.
    tested.sees(job(), sealed(3, "b", "a"), node("a"), node("b"))
    assert own_record(tested) is None
    assert tested.feed(Tick(), 1.0).probes() == ["b"]
    assert own_record(tested.feed(Probed("b", ALIVE), 0.001)) is not None


def test_whom_a_node_reached_before_it_was_left_out_says_nothing_about_now() -> None:
    members = job(), sealed(3, "b", "a"), node("a")
    tested = NodeUnderTest("c").sees(*members, wide=False)
    tested.feed(Probed("a", ALIVE), 0.001).feed(Probed("b", ALIVE), 0.001)
    assert own_record(tested) is not None
    tested.feed(NewNode(node("d"))).sees(*members, wide=False)
    assert (own_record(tested), sorted(tested.probes())) == (None, ["a", "b"])
    tested.feed(Probed("a", ALIVE), 0.001)
    assert own_record(tested) is None
    assert own_record(tested.feed(Probed("b", ALIVE), 0.001)) is not None


def test_a_firewall_that_refuses_a_joiner_does_not_make_it_take_the_group_for_dead() -> None:
    """A job that trains would get another life beside it."""
    far = [node(name, address="10.0.0.1") for name in "ab"]
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), *far)
    for _ in range(3):
        tested.feed(Probed("a", REFUSED), 0.001).feed(Probed("b", REFUSED), 0.001)
        assert (own_record(tested), tested.transaction(JOB)) == (None, None)
        tested.feed(Tick(), 5.0)
    # Once their leases have ended, it is a proof.
    tested.changes(gone=("nodes/a", "nodes/b"))
    assert own_record(tested) is not None
    tested.changes(node("c")).feed(Probed("a", REFUSED)).feed(Probed("b", REFUSED))
    assert tested.transaction(JOB) is not None


def test_who_was_left_out_behind_a_firewall_does_not_take_the_others_for_dead_for_ever() -> None:
    far = node("a", address="10.0.0.1")
    tested = member().feed(LeftRound(3, FaultReport(3, "failed")))
    tested.feed(Tick(), POLICY.probe_after + POLICY.probe_stagger).feed(Probed("a", REFUSED), 0.001)
    assert "a" in tested.state.reach.dead
    tested.feed(NewNode(node("c"))).sees(job(), sealed(4, "a"), far)
    assert (own_record(tested), tested.transaction(JOB)) == (None, None)


GONE_NODE = node("b", status="gone", left=3)


@pytest.mark.parametrize("answer", [SILENT, REFUSED])
@pytest.mark.parametrize("shown", [(), (GONE_NODE,)], ids=["killed", "left"])
def test_a_member_that_is_over_keeps_no_newcomer_from_those_who_wait_for_it(
    answer: str, shown: tuple[NodeRecord, ...]
) -> None:
    """At the minimum the others can begin no round in which it is no member any more."""
    group = job(2, 2), sealed(3, "a", "b"), back("a", 3)
    tested = NodeUnderTest("c").sees(*group, wide=False)
    tested.feed(Probed("a", ALIVE), 0.001).feed(Probed("b", answer), 0.5)
    assert own_record(tested) is None
    # Its key says more than its silence.
    assert [action for action in tested.actions if isinstance(action, Look)] == [
        Look(True, frozenset())
    ]
    assert own_record(tested.sees(*group, *shown)) is not None


def test_a_member_whose_key_is_gone_may_still_train_with_the_others() -> None:
    """One who cannot reach it would break the round of all others for nothing."""
    group = job(1, 3), sealed(3, "a", "b"), node("a")
    tested = NodeUnderTest("c").sees(*group, wide=False)
    tested.feed(Probed("a", ALIVE), 0.001).feed(Probed("b", SILENT), 0.5)
    assert own_record(tested.sees(*group)) is None
    # Once the round is over, there is nothing to break.
    assert own_record(tested.changes(back("a", 3))) is not None


def test_where_nobody_is_there_a_silent_group_disturbs_nobody() -> None:
    assert own_record(NodeUnderTest("c").sees(job(), sealed(3, "a"), wide=False)) is not None


@pytest.mark.parametrize("known", [True, False])
def test_another_job_under_the_run_id_is_a_conflict_if_it_lives(known: bool) -> None:
    theirs = replace(node("a"), settings="theirs")
    shown = (job(1, 2, settings="theirs", entry="other.py"),) if known else ()
    tested = NodeUnderTest("c").sees(*shown, theirs, wide=False)
    assert (own_record(tested), tested.probes()) == (None, ["a"])
    (conflict,) = tested.feed(Probed("a", ALIVE), 0.001).told(Conflict)
    assert "use the same settings or another --run-id" in conflict.message
    assert ("other.py with 1:2 nodes" in conflict.message) is known
    tested = NodeUnderTest("c").sees(*shown, theirs, wide=False).feed(Probed("a", REFUSED), 0.001)
    assert not tested.told(Conflict)


_OURS = replace(POLICY, protocol="2", release="0.2.0")


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ({"protocol": "3", "release": "0.3.0"}, "0.3.0 (protocol 3): install the same one"),
        # The record of a version that did not say which it is.
        ({}, "an older one: install the same one"),
        # Some other setting is another one, too.
        ({"launch_max": 5}, "use the same settings"),
        ({"launch_max": 5, "protocol": "2", "release": "0.2.1"}, "use the same settings"),
        ({"launch_max": 5, "protocol": "3", "release": "0.3.0"}, "0.3.0 (protocol 3): install"),
    ],
)
def test_a_job_of_another_version_is_a_conflict_that_says_so(
    theirs: dict[str, object], told: str
) -> None:
    other = job(settings="theirs", **theirs)
    tested = NodeUnderTest("c", _OURS).sees(other, node("a", settings="theirs"), wide=False)
    (waiting,) = tested.feed(Probed("a", SILENT), 0.001).told(Waiting)
    (conflict,) = tested.feed(Probed("a", ALIVE), 0.001).told(Conflict)
    assert told in conflict.message
    assert "install" not in told or "this node runs 0.2.0 (protocol 2)" in conflict.message
    assert ("of another version" in waiting.reason) is ("install" in told)


def test_a_job_says_which_version_began_it() -> None:
    written = NodeUnderTest("a", _OURS).sees(node("a")).written(JobRecord, JOB)
    assert written is not None
    assert (written.protocol, written.release) == ("2", "0.2.0")


def test_bounds_that_were_changed_while_it_runs_are_no_conflict() -> None:
    tested = NodeUnderTest("c").sees(job(2, 3), node("a"), wide=False)
    assert own_record(tested) is not None


def test_the_job_of_others_that_are_gone_is_followed_by_ours() -> None:
    old = job(1, 2, settings="theirs")
    tested = NodeUnderTest("c").sees(old, sealed(3, "a"), wide=False)
    assert own_record(tested) is not None
    tested.sees(old, sealed(3, "a"), node("c")).feed(Probed("a", REFUSED), 0.001)
    fresh = tested.written(JobRecord, JOB)
    assert fresh is not None
    assert (fresh.settings, fresh.first_round) == ("s", 3)
