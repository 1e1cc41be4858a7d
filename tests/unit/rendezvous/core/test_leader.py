"""What a leader decides for all: who is in, when a round is sealed, and when the job ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import (
    FaultReport,
    JobRecord,
    NodeRecord,
    OutcomeRecord,
    Record,
    SwitchRecord,
)
from elastic_runtime.protocol.round_records import Budget, Member, RoundRecord
from elastic_runtime.rendezvous.core.formation.member_status import has_returned
from elastic_runtime.rendezvous.core.incarnation import dead_keys
from elastic_runtime.rendezvous.core.membership_events import (
    OTHER,
    REFUSED,
    REPLACED,
    SILENT,
    Applied,
    NewNode,
    TrainReturned,
)
from elastic_runtime.rendezvous.core.node_state import Timer
from elastic_runtime.rendezvous.core.notices import Waiting
from elastic_runtime.rendezvous.store_contract import ABSENT, Expect
from tests.unit.rendezvous.node_under_test import (
    LIFE,
    POLICY,
    NodeUnderTest,
    back,
    job,
    member,
    node,
    sealed,
    switch,
)

BROKEN, PLANNED = (switch(3, broken=broken) for broken in (True, False))
FAULT = FaultReport(3, records.FAILED, "ValueError: x", signature="ValueError: x", step=5)


def test_the_first_node_writes_down_what_the_job_is() -> None:
    record = NodeUnderTest().sees(node("a")).wrote(JobRecord)
    assert (record.min_nodes, record.max_nodes, record.entry) == (1, 4, "train.py")
    assert (record.settings, record.incarnation) == ("s", "a.0")


def _has_left(*shown: Record, fault: FaultReport | None = None) -> NodeUnderTest:
    """Node a, which leads, has left round 3 of a and b, and has not said so yet."""
    return NodeUnderTest().wants(back("a", 3, fault)).sees(job(1, 2), sealed(3, "a", "b"), *shown)


@pytest.mark.parametrize(
    ("terms", "names", "at_once", "after_last_call"),
    [
        (job(1, 3), "abc", "abc", ""),
        (job(1, 3), "abcd", "abc", ""),
        (job(1, 4), "abc", "", "abc"),
        (job(1, 1), "ab", "a", ""),
        (job(3, 4), "ab", "", ""),
        (job(1, 4, unit=2), "abc", "", "ab"),
        (job(1, 5, unit=2), "abcde", "", "abcd"),
        (job(2, 4, unit=2), "a", "", ""),
    ],
)
def test_the_first_round(terms: JobRecord, names: str, at_once: str, after_last_call: str) -> None:
    tested = NodeUnderTest().sees(terms, *(node(name) for name in names))
    assert tested.members() == list(at_once)
    if not at_once:
        tested.later(POLICY.timeouts.last_call)
        assert tested.members() == list(after_last_call)


def test_a_seal_is_fenced_and_removes_who_is_known_to_be_gone() -> None:
    tested = NodeUnderTest().sees(job(1, 2), node("a"), node("b"), node("c", status=records.GONE))
    transaction = tested.request(records.ROUND)
    expected = {expect.key: expect.version for expect in transaction.expects}
    assert expected == {records.ROUND: ABSENT, "nodes/a": tested.state.own.version}
    assert transaction.deletes == ("nodes/c",)


def test_a_seal_carries_what_the_leader_says_of_itself() -> None:
    """Two writes, one after the other, would take twice as long."""
    tested = _has_left(BROKEN, node("a"), back("b", 3))
    assert tested.transaction("own") is None
    transaction = tested.request(records.ROUND)
    leased = {put.key: put.leased for put in transaction.puts}
    assert leased == {"nodes/a": True, records.ROUND: False}
    assert Expect("nodes/a", tested.state.own.version) in transaction.expects
    assert tested.state.own.stored == node("a")  # until the store shows something else
    assert tested.state.pending("own", 0.0)
    for tag in ("own", records.ROUND):
        tested.feed(Applied(tag, False))
    assert not tested.actions  # both are tried again, after a pause
    tested.later(1.0)
    assert tested.members() == ["a", "b"]


def test_a_seal_waits_for_what_the_leader_is_writing_of_itself() -> None:
    # The version of its own key fences the seal.
    tested = _has_left(BROKEN, node("a"), node("b"))
    assert tested.transaction("own") is not None
    assert not tested.changes(back("b", 3)).actions
    tested.changes(back("a", 3))
    assert tested.members() == ["a", "b"]


def test_members_that_have_all_left_a_broken_round_need_no_order_to_leave_it() -> None:
    tested = _has_left(node("a"), back("b", 3, FAULT))
    assert tested.members() == ["a", "b"]
    assert "ValueError: x" in tested.wrote(RoundRecord).reason
    assert tested.transaction(records.SWITCH) is None
    assert tested.state.switch_record is None  # the store has none


def test_a_leader_says_together_that_it_has_left_and_that_others_shall_leave() -> None:
    tested = _has_left(node("a"), node("b"), fault=FAULT)
    assert tested.transaction("own") is None
    assert [put.key for put in tested.request(records.SWITCH).puts] == ["nodes/a", records.SWITCH]
    assert not tested.members()


@pytest.mark.parametrize(("ok", "number"), [(True, 4), (None, 4), (False, 3)])
def test_a_store_that_forgot_a_seal_before_its_leader_saw_it_gets_it_back(
    ok: bool | None, number: int
) -> None:
    """Others may have seen it. What was refused, nobody has."""
    tested = _has_left(BROKEN, back("a", 3), back("b", 3))
    assert tested.members() == ["a", "b"]
    tested.feed(Applied(records.ROUND, ok)).sees(forgot=True)
    assert tested.wrote(RoundRecord).number == number


def test_too_few_nodes_end_the_job_after_the_join_time_out() -> None:
    tested = NodeUnderTest().sees(job(3, 4), node("a"), node("b"))
    (waiting,) = tested.told(Waiting)
    assert (waiting.have, waiting.minimum, waiting.maximum) == (2, 3, 4)
    assert not tested.later(POLICY.timeouts.join_timeout - 0.1).written(OutcomeRecord)
    outcome = tested.later(0.1).wrote(OutcomeRecord)
    assert (outcome.succeeded, outcome.exit_code) == (False, 3)
    assert outcome.reason.startswith("2 of at least 3 nodes came together within 600 s")


def test_members_that_are_back_are_followed_by_joiners_in_order() -> None:
    shown = (back("c", 3), back("a", 3), node("e"), back("b", 3), node("d"))
    tested = NodeUnderTest("c").wants(back("c", 3))
    tested.sees(job(1, 9), sealed(3, "a", "b", "c"), BROKEN, *shown)
    record = tested.wrote(RoundRecord)
    assert tested.members() == ["a", "b", "c", "e", "d"]
    assert (record.number, record.survivors, record.incarnation) == (4, 3, LIFE)
    assert record.store_port == node("a").store_port


def _broken(*shown: Record) -> NodeUnderTest:
    """Round 3 of a, b and c is broken; a leads, and has left it."""
    others = shown or (node("b"), back("c", 3))
    tested = NodeUnderTest().wants(back("a", 3))
    return tested.sees(job(), sealed(3, "a", "b", "c"), BROKEN, back("a", 3), *others).settle()


def test_a_member_that_has_not_said_anything_is_probed_and_waited_for() -> None:
    tested = _broken()
    assert tested.members() == []
    assert tested.later(POLICY.probe_after).probes() == ["b"]
    assert tested.probed("b", SILENT, 0.001).members() == []
    assert tested.later(POLICY.probe_after).probes() == ["b"]
    assert tested.probed("b", SILENT, POLICY.probe_every).probes() == ["b"]
    assert tested.changes(back("b", 3), after=0.1).members() == ["a", "b", "c"]


@pytest.mark.parametrize("answer", [REFUSED, OTHER])
def test_a_probe_that_is_refused_proves_a_death(answer: str) -> None:
    tested = _broken().later(POLICY.probe_after).probed("b", answer, 0.001)
    assert tested.members() == ["a", "c"]
    assert set(tested.request(records.ROUND).deletes) == {records.SWITCH, "nodes/b"}
    record = tested.wrote(RoundRecord)
    assert record.reason.startswith("node b lost: ")
    assert (record.budget.lost, record.budget.failures) == (1, 0)


def test_a_member_whose_lease_ended_is_not_waited_for() -> None:
    assert _broken().changes(gone=("nodes/b",), after=1.0).members() == ["a", "c"]


def test_an_absent_key_proves_nothing_just_after_contact_was_regained() -> None:
    tested = _broken()
    tested.regained(tested.now)
    assert tested.changes(gone=("nodes/b",), after=0.1).members() == []
    assert tested.later(POLICY.settle).members() == ["a", "c"]


def test_a_member_that_never_comes_back_is_left_out() -> None:
    tested = _broken()
    assert tested.later(POLICY.timeouts.rejoin_timeout - 0.1).members() == []
    assert tested.later(0.1).members() == ["a", "c"]
    assert "nodes/b" in tested.request(records.ROUND).deletes


def test_no_islands_while_all_of_the_last_round_are_silent() -> None:
    tested = NodeUnderTest("d").sees(job(), sealed(3, "a", "b"), node("d")).settle()
    assert sorted(tested.probes()) == ["a", "b"]
    for name in "ab":
        tested.probed(name, SILENT, 0.5)
    assert tested.transaction(records.JOB) is None
    tested.later(POLICY.timeouts.fence_timeout - 2.0)
    assert tested.transaction(records.JOB) is None
    fresh = tested.later(2.0).wrote(JobRecord)
    assert (fresh.incarnation, fresh.first_round) == ("d.3", 3)


def test_a_new_life_begins_at_once_where_the_old_one_is_proven_dead() -> None:
    tested = NodeUnderTest("d").sees(job(), sealed(3, "a", "b"), node("d"))
    tested.probed("a", REFUSED).probed("b", REFUSED)
    transaction = tested.request(records.JOB)
    assert set(transaction.deletes) == {records.ROUND, records.SWITCH, records.OUTCOME}


@pytest.mark.parametrize(
    ("old", "shown", "bounds"),
    [
        (job(1, 3, launch_max=4), (), (1, 3)),
        (job(2, 2, launch_min=1, launch_max=4), (), (2, 2)),
        # Who starts a job that has ended, or with other settings, starts another one.
        (job(1, 3, launch_max=4), (OutcomeRecord(LIFE, False, 1, "ValueError: x"),), (1, 4)),
        (job(1, 3, launch_max=5), (), (1, 4)),
        (job(1, 3, launch_max=4, settings="theirs"), (), (1, 4)),
    ],
)
def test_what_the_job_was_scaled_to_holds_until_it_ends(
    old: JobRecord, shown: tuple[OutcomeRecord, ...], bounds: tuple[int, int]
) -> None:
    tested = NodeUnderTest("d").sees(old, sealed(3, "a", "b"), node("d"), *shown)
    if not shown:  # nobody asks after the members of a job that has ended
        tested.probed("a", REFUSED).probed("b", REFUSED)
    fresh = tested.wrote(JobRecord)
    assert (fresh.min_nodes, fresh.max_nodes) == bounds
    assert (fresh.launch_min, fresh.launch_max) == (1, 4)


def _pod(node_: str, index: int, life: int) -> Member:
    return Member(node_, f"pod-{index}", "127.0.0.1", 1, 1000 + ord(node_[0]), life=life)


@pytest.mark.parametrize(
    ("former", "own", "over"),
    [(5, 8, True), (8, 8, False), (9, 8, False), (0, 8, False), (5, 0, False)],
)
def test_a_later_life_of_a_name_proves_that_earlier_ones_are_over(
    former: int, own: int, over: bool
) -> None:
    tested = NodeUnderTest("d").feed(NewNode(node("d", name="pod-0", life=own)))
    last = replace(sealed(3, "a"), members=(_pod("a", 0, former),))
    tested.sees(job(), last, node("d", name="pod-0", life=own))
    assert (tested.state.reach.dead == {"a": REPLACED}) is over
    assert (tested.transaction(records.JOB) is not None) is over
    assert (tested.probes() == []) is over


def test_a_later_life_says_nothing_about_other_names() -> None:
    tested = NodeUnderTest("d").feed(NewNode(node("d", name="pod-0", life=8)))
    last = replace(sealed(3, "a", "b"), members=(_pod("a", 0, 5), _pod("b", 1, 6)))
    tested.sees(job(), last, node("d", name="pod-0", life=8))
    assert tested.transaction(records.JOB) is None
    assert tested.state.reach.dead == {"a": REPLACED}
    later = node("e", name="pod-1", life=9)
    assert tested.changes(later).transaction(records.JOB) is not None


def test_a_former_life_does_not_lead_for_as_long_as_its_lease() -> None:
    tested = NodeUnderTest("d").feed(NewNode(node("d", name="pod-0", life=8)))
    pods = (("a", "pod-0", 5), ("b", "pod-1", 6), ("d", "pod-0", 8))
    tested.sees(job(low=2), *(node(name, name=pod, life=life) for name, pod, life in pods))
    tested.later(POLICY.timeouts.last_call + 0.1)
    assert tested.state.reach.dead == {"a": REPLACED}
    # It is no leader, and no member of the round that follows.
    assert "a" not in tested.members()


@pytest.mark.parametrize(
    ("shown", "broken", "reason"),
    [
        # One that drains is a planned change; one that went before it was in the round breaks it.
        ([node("a"), node("b", status=records.LEAVING)], False, "node b was asked to leave"),
        (
            [PLANNED, node("a", status=records.LEAVING), back("b", 2, status=records.GONE)],
            True,
            "node b left",
        ),
    ],
)
def test_who_leaves_is_told_of(shown: list[Record], broken: bool, reason: str) -> None:
    order = NodeUnderTest().sees(job(1, 2), sealed(3, "a", "b"), *shown).wrote(SwitchRecord)
    assert (order.broken, order.reason) == (broken, reason)


@pytest.mark.parametrize("report", [FAULT, FaultReport(3, records.ASKED, "asked"), None])
def test_a_member_that_left_unasked_breaks_the_round(report: FaultReport | None) -> None:
    left = replace(back("b", 3), fault=report)
    tested = NodeUnderTest().sees(job(1, 2), sealed(3, "a", "b"), node("a"), left)
    assert tested.wrote(SwitchRecord).broken


@pytest.mark.parametrize(
    ("fault", "escalates"),
    [(None, False), (FaultReport(3, records.ASKED, "asked"), False), (FAULT, True)],
)
def test_leaving_as_planned_breaks_nothing(fault: FaultReport | None, escalates: bool) -> None:
    others = node("a"), back("b", 3, fault)
    tested = NodeUnderTest().sees(job(1, 2), sealed(3, "a", "b"), PLANNED, *others)
    order = tested.written(SwitchRecord)
    assert (order is not None and order.broken) is escalates


def test_joiners_are_gathered_unless_they_fill_the_world() -> None:
    shown = (job(1, 4), sealed(3, "a"), node("a"))
    tested = NodeUnderTest().sees(*shown).changes(node("b"), after=10.0)
    assert tested.transaction(records.SWITCH) is None
    half = POLICY.timeouts.join_batch / 2
    assert tested.changes(node("c"), after=half).transaction(records.SWITCH) is None
    assert tested.later(half).wrote(SwitchRecord).reason == "nodes b, c join"
    full = NodeUnderTest().sees(job(1, 2), sealed(3, "a"), node("a")).changes(node("b"), after=10.0)
    assert full.transaction(records.SWITCH) is not None


def _through(name: str) -> NodeRecord:
    return node(name, status=records.DONE, incarnation=LIFE, done_round=3)


def test_nobody_is_let_in_once_somebody_is_done() -> None:
    tested = NodeUnderTest().sees(job(1, 3), sealed(3, "a", "b"), node("a"), _through("b"))
    assert tested.changes(node("c"), after=10.0).transaction(records.SWITCH) is None


def test_fewer_nodes_may_be_asked_for_while_it_runs() -> None:
    tested = NodeUnderTest().sees(job(1, 1), sealed(3, "a", "b"), node("a"), node("b"))
    assert tested.wrote(SwitchRecord).reason == "the job was scaled to at most 1 nodes"


def test_the_job_ends_when_all_are_through() -> None:
    tested = NodeUnderTest().wants(_through("a"))
    tested.sees(job(), sealed(3, "a", "b", "c"), _through("a"), _through("b"), node("c"))
    assert tested.transaction(records.OUTCOME) is None
    # One that was through may be gone by now.
    tested.changes(gone=("nodes/b",), after=10.0)
    outcome = tested.changes(_through("c")).wrote(OutcomeRecord)
    assert (outcome.succeeded, outcome.exit_code) == (True, 0)


def test_a_failure_brings_back_those_that_were_through() -> None:
    tested = _broken(_through("b"), back("c", 3, FAULT))
    assert tested.members() == []
    record = tested.changes(back("b", 3, done_round=3), after=0.01).wrote(RoundRecord)
    assert tested.members() == ["a", "b", "c"]
    assert record.budget.failures == 1


def test_the_end_of_the_budget_is_the_end_of_the_job() -> None:
    tested = NodeUnderTest(policy=replace(POLICY, max_restarts=0)).wants(back("a", 3))
    shown = (sealed(3, "a", "b"), BROKEN, back("a", 3), back("b", 3, FAULT))
    outcome = tested.sees(job(), *shown).wrote(OutcomeRecord)
    assert (outcome.succeeded, outcome.exit_code, outcome.node) == (False, 1, "b")
    assert outcome.fault == FAULT


_ECHO = FaultReport(3, records.FAILED, "no route to host", consequence=True)
# A broken round that b has joined, of which all have said whom they reach.
_SURVEYED = (
    sealed(3, "a", "b", survivors=1, budget=Budget(best_step=9)),
    switch(3, broken=True, survey=True),
)


@pytest.mark.parametrize(
    ("fault", "members"),
    [
        (_ECHO, ["a"]),
        (FaultReport(3, records.START, "the port is taken"), ["a"]),
        (FAULT, ["a", "b"]),  # that was the script
    ],
)
def test_newcomers_with_whom_a_round_fails_stay_out_for_a_while(
    fault: FaultReport, members: list[str]
) -> None:
    own, other = (back(name, 3, fault, checked=3) for name in "ab")
    tested = NodeUnderTest().wants(own).sees(job(1, 2), *_SURVEYED, own).changes(other, after=0.01)
    assert (tested.members() or tested.later(1.0).members()) == members
    if members == ["a", "b"]:
        return
    needed = NodeUnderTest().wants(own).sees(job(2, 2), *_SURVEYED, own, other)
    assert needed.members() == ["a", "b"], "there may be no choice but a suspect"
    # Who was left out looks for the members of the new round before it is let in.
    other = replace(other, checked=4)
    tested.changes(sealed(4, "a", survivors=1), other, gone=("switch",), after=0.01)
    assert tested.later(POLICY.timeouts.join_batch).transaction(records.SWITCH) is None
    assert tested.later(10.0).transaction(records.SWITCH) is not None


def test_who_waits_for_nodes_is_told_that_they_were_asked_for_later() -> None:
    (launched,) = NodeUnderTest().sees(job(3, 4), node("a")).told(Waiting)
    (scaled,) = NodeUnderTest().sees(job(3, 4, launch_min=1), node("a")).told(Waiting)
    assert launched.reason == "waiting for at least 3 nodes"
    assert scaled.reason == "waiting for at least 3 nodes (elasticctl scale)"


# ---------------------------------------------------------------- a life of the job


def test_a_job_that_has_run_before_may_still_be_training_somewhere() -> None:
    tested = NodeUnderTest(policy=replace(POLICY, resuming=True))
    tested.sees(node("a")).settle().sees(node("a"))
    assert tested.written(JobRecord) is None
    assert tested.state.timers[Timer.RESUMING] == tested.now
    assert tested.wake <= tested.now + POLICY.timeouts.fence_timeout


def test_a_node_that_is_alive_holds_up_the_next_life() -> None:
    shown = job(), node("a"), node("b", incarnation=LIFE), sealed(3, "b")
    assert NodeUnderTest().sees(*shown).settle().sees(*shown).written(JobRecord) is None


def test_only_the_keys_of_nodes_that_are_known_to_be_gone_are_removed() -> None:
    gone = node("c", status=records.GONE)
    tested = NodeUnderTest().sees(job(), node("a"), node("b"), gone, node("d"))
    tested.state = replace(tested.state, reach=replace(tested.state.reach, dead={"d": "refused"}))
    assert dead_keys(tested.state, frozenset()) == ("nodes/c", "nodes/d")
    assert dead_keys(tested.state, frozenset({"d"})) == ("nodes/c",)


# ---------------------------------------------------------------- the job's secret

OURS = replace(POLICY, secret="drawn by this node")
THEIRS = "drawn by another one"


@pytest.mark.parametrize("older", [(), (job(),)])
def test_who_begins_a_job_or_finds_one_without_gives_it_a_secret_and_others_take_it_over(
    older: tuple[JobRecord, ...],
) -> None:
    assert NodeUnderTest(policy=OURS).sees(node("a"), *older).wrote(JobRecord).secret == OURS.secret
    assert not NodeUnderTest().sees(node("a"), job()).written(JobRecord), "it has none itself"
    assert NodeUnderTest("b", OURS).sees(job(secret=THEIRS)).state.secret == THEIRS


@pytest.mark.parametrize(("before", "after"), [(THEIRS, THEIRS), ("", OURS.secret)])
def test_a_new_life_of_the_job_keeps_its_secret(before: str, after: str) -> None:
    tested = NodeUnderTest("d", OURS).sees(job(secret=before), sealed(3, "a"), node("d"))
    record = tested.probed("a", REFUSED).wrote(JobRecord)
    assert (record.incarnation, record.secret) == ("d.3", after)


def test_a_store_that_forgot_gets_the_secret_back() -> None:
    shown = node("a"), node("b"), job(secret=THEIRS), sealed(3, "a", "b")
    tested = NodeUnderTest("b", OURS).sees(*shown).sees(wide=False, forgot=True)
    assert tested.state.secret == THEIRS  # in the meantime as well
    assert tested.wrote(JobRecord, records.ROUND).secret == THEIRS


def test_a_secret_that_an_older_elasticctl_has_dropped_is_written_again() -> None:
    shown = job(secret=THEIRS), sealed(3, "a", "b"), node("a"), node("b")
    tested = NodeUnderTest("a", OURS).sees(*shown).changes(job(1, 3))  # scaled
    assert tested.state.secret == THEIRS
    mended = tested.written(JobRecord) or tested.wrote(JobRecord, records.ROUND)
    assert (mended.secret, mended.max_nodes) == (THEIRS, 3)


def test_nobody_joins_a_living_job_of_a_version_without_secrets() -> None:
    tested = NodeUnderTest("b", OURS).sees(job(), sealed(3, "a"), node("a"))
    assert not tested.transaction("own")
    assert "run one version on all nodes" in tested.told(Waiting)[0].reason
    tested = NodeUnderTest("b", OURS).sees(job(secret=THEIRS), sealed(3, "a"), node("a"))
    assert not tested.told(Waiting)


def test_no_secret_is_shown_where_records_are() -> None:
    shown = repr(NodeUnderTest("b", OURS).sees(job(secret=THEIRS)).state)
    assert OURS.secret not in shown
    assert THEIRS not in shown


# ---------------------------------------------------------------- those who are back


def _in_place(last: RoundRecord, *others: Record, high: int = 4) -> NodeUnderTest:
    """Node a leads a job in place, and has all its workers."""
    own = node("a", full=1)
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True)).wants(own)
    return tested.sees(job(1, high, in_place=True), last, own, *others)


def _assert_taken_in(tested: NodeUnderTest, waits: bool) -> None:
    """Asserts that somebody is taken in at once, or only after a while."""
    assert bool(tested.written(SwitchRecord)) is not waits
    tested.later(2 * POLICY.join_batch_in_place)
    assert bool(tested.written(SwitchRecord)) is waits


@pytest.mark.parametrize(
    ("waits", "newcomer", "others"),
    [
        (False, back("b", 2, full=1), ()),
        (True, back("b", 2), ()),  # of an older version, which does not say how many it has
        (True, back("b", 2, full=2), ()),  # another of its workers is to come
        (True, back("b", 2, full=1), (back("c", 2, full=1, workers=0),)),
        (True, node("b", full=1), ()),  # where a new node comes, others often do
    ],
)
def test_a_node_that_is_back_is_taken_in_at_once_if_no_other_is_to_come(
    waits: bool, newcomer: NodeRecord, others: tuple[NodeRecord, ...]
) -> None:
    _assert_taken_in(_in_place(sealed(3, "a"), *others).changes(newcomer), waits)


@pytest.mark.parametrize(("now", "waits"), [(3, False), (2, True)])
def test_a_worker_that_is_back_is_taken_in_at_once_if_no_other_is_to_come(
    now: int, waits: bool
) -> None:
    one_each = _in_place(sealed(3, "a", "b"), node("b", full=3))
    _assert_taken_in(one_each.changes(node("b", full=3, workers=now)), waits)


@pytest.mark.parametrize("of_now", [True, False])
def test_nobody_is_taken_in_where_training_is_over(of_now: bool) -> None:
    over = node("b", full=1, incarnation=LIFE, returned=3 if of_now else 2)
    tested = _in_place(sealed(3, "a", "b"), over).changes(back("c", 2, full=1))
    order = tested.written(SwitchRecord)
    assert (order is None) is of_now
    assert order is None or order.grows


def test_the_end_of_what_follows_the_training_is_waited_for() -> None:
    """The order to take a node in was written while ``train`` returned."""
    tested = ordered_too_late()
    for _ in range(3):  # the second time, as nobody has come back
        tested.later(100 * POLICY.timeouts.rejoin_timeout)
        assert not tested.members()
    tested.wants(done("a")).changes(done("a"), done("b"))
    assert tested.wrote(OutcomeRecord).succeeded


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("goes", [True, False])
def test_those_that_do_not_obey_are_told_that_another_one_has_left(ended: bool, goes: bool) -> None:
    tested = ordered_too_late()
    asked = FaultReport(3, records.ASKED, "the node was asked to leave")
    status = records.GONE if goes else records.IN
    other = back("b", 3, asked if goes else None, workers=0, status=status)
    if ended:
        tested.wants(done("a")).changes(done("a"))
    tested.changes(other)
    order = tested.wrote(SwitchRecord)
    assert order.broken
    assert order.reason == "node b left before its script had ended"


def test_under_another_order_those_who_leave_have_their_time() -> None:
    order = SwitchRecord(3, LIFE, broken=False, reason="node b was asked to leave")
    asked = FaultReport(3, records.ASKED, "the node was asked to leave")
    others = back("b", 3, asked, status=records.GONE), done("c")
    assert _in_place(sealed(3, "a", "b", "c"), order, *others).written(SwitchRecord) is None


@pytest.mark.parametrize("stands", ["to grow", "to shrink", "to end a broken round"])
@pytest.mark.parametrize("scaled", [True, False])
def test_who_goes_waits_for_no_step_at_which_others_may_join(stands: str, scaled: bool) -> None:
    """Where ranks train alone, the next common step can be hours away."""
    broken, grows = stands == "to end a broken round", stands == "to grow"
    order = SwitchRecord(3, LIFE, broken, stands, grows=grows)
    tested = _in_place(sealed(3, "a", "b"), order, node("b", full=1), node("c", full=1))
    assert tested.written(SwitchRecord) is None
    terms = job(1, 1, in_place=True)
    tested.changes(terms if scaled else node("b", full=1, status=records.LEAVING))
    written = tested.written(SwitchRecord)
    reason = "the job was scaled to at most 1 nodes" if scaled else "node b was asked to leave"
    assert (written is not None) is grows
    assert not written or (written.broken, written.grows, written.reason) == (False, False, reason)


@pytest.mark.parametrize("over", [True, False])
def test_a_smaller_world_is_for_those_who_train(over: bool) -> None:
    second = node("b", full=1, incarnation=LIFE, returned=3 if over else 0)
    order = _in_place(sealed(3, "a", "b"), second, high=1).written(SwitchRecord)
    assert (order is None) is over
    assert order is None or not order.grows


def test_what_a_node_says_of_the_end_is_kept_until_it_is_in_another_life() -> None:
    tested = member().feed(TrainReturned(3))
    own = tested.wrote(NodeRecord)
    assert (own.returned, own.incarnation) == (3, LIFE)
    assert has_returned(own, sealed(3, "a"))
    for other in (sealed(4, "a"), replace(sealed(3, "a"), incarnation="another")):
        assert not has_returned(own, other)


def ordered_too_late() -> NodeUnderTest:
    """Of two members whose ``train`` has returned, with an order to take in node c."""
    tested = NodeUnderTest(policy=replace(POLICY, in_place=True))
    over = {"full": 1, "incarnation": LIFE, "returned": 3}
    members = node("a", **over), node("b", **over)
    order = SwitchRecord(3, LIFE, broken=False, reason="node c is back", grows=True)
    tested.wants(members[0])
    tested.sees(job(in_place=True), sealed(3, "a", "b"), order, *members, back("c", 2, full=1))
    return tested


def done(name: str) -> NodeRecord:
    """Its script has ended well in round 3."""
    return node(name, full=1, incarnation=LIFE, returned=3, done_round=3, status=records.DONE)
