"""What a node does about itself: its key, its rounds, its leader, the store, and the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.config import Timeouts
from elastic_runtime.limits import FENCE_RESERVE, LONGEST_WAIT, OUTAGE_REPORT_INTERVAL
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import (
    FaultReport,
    JobRecord,
    NodeRecord,
    OutcomeRecord,
    SwitchRecord,
)
from elastic_runtime.protocol.round_records import Budget, RoundRecord
from elastic_runtime.rendezvous.core.actions import ApplyTransaction, Follow, Look
from elastic_runtime.rendezvous.core.formation.member_status import accompanied
from elastic_runtime.rendezvous.core.membership_events import (
    ALIVE,
    BUSY,
    REFUSED,
    SILENT,
    Applied,
    Done,
    Event,
    Goodbye,
    Leaving,
    LeftRound,
    LookForMembers,
    NewNode,
    Tick,
)
from elastic_runtime.rendezvous.core.node_state import OWN
from elastic_runtime.rendezvous.core.notices import (
    BadRecord,
    Conflict,
    Ended,
    Excluded,
    Fenced,
    Sealed,
    StoreState,
    StoreTimeout,
    StoreTrouble,
    Surveyed,
    Switch,
    Waiting,
)
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Expect,
    Found,
    LeaseLost,
    Lost,
    Refused,
    StoreEntry,
    StoreSnapshot,
)
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

OUTCOME = OutcomeRecord(LIFE, True, 0, "the script ended well on all")


# ---------------------------------------------------------------- its key


def test_a_node_shows_itself_under_a_lease() -> None:
    tested = NodeUnderTest()
    assert tested.actions == [Follow("nodes/a")]
    transaction = tested.sees(wide=False).request("own")
    assert transaction.expects == (Expect("nodes/a", ABSENT),)
    assert transaction.puts[0].leased


def test_a_write_is_not_repeated_before_it_can_be_seen() -> None:
    tested = NodeUnderTest().sees(wide=False)
    assert tested.later(0.01).transaction("own") is None
    assert tested.feed(Applied("own", True)).transaction("own") is None
    assert tested.changes(node("a")).transaction("own") is None


@pytest.mark.parametrize(("ok", "pause"), [(False, 0.05), (None, 0.2)])
def test_a_write_that_failed_is_tried_again_after_a_pause(ok: bool | None, pause: float) -> None:
    tested = NodeUnderTest().sees(wide=False).feed(Applied("own", ok))
    assert tested.transaction("own") is None
    assert tested.wake == tested.now + pause
    assert tested.later(pause).transaction("own") is not None


def test_an_answer_that_comes_after_the_change_holds_nothing_up() -> None:
    tested = member().feed(Done(3))
    through = node("b", status=records.DONE, incarnation=LIFE, done_round=3)
    tested.changes(through).feed(Applied("own", True))
    assert tested.feed(Goodbye()).shows() == replace(through, status=records.GONE)


def test_what_the_agent_says_is_written() -> None:
    tested = member()
    fault = FaultReport(3, "failed", "ValueError: x", step=12)
    written = tested.feed(LeftRound(3, fault, store_port=77)).shows()
    assert written == node(
        "b", incarnation=LIFE, left=3, rank=1, fault=fault, step=12, store_port=77
    )
    assert member().feed(Leaving()).wrote(NodeRecord).status == "draining"


def test_a_goodbye_outlives_the_lease_and_is_known_to_be_said() -> None:
    tested = member().feed(Goodbye())
    assert not tested.request("own").puts[0].leased
    assert not tested.state.goodbye_done(tested.now)
    tested.changes(node("b", status=records.GONE))
    assert tested.state.goodbye_done(tested.now)


def test_nobody_needs_the_goodbye_of_a_node_that_was_never_seen() -> None:
    tested = NodeUnderTest().feed(Goodbye()).sees(wide=False)
    assert tested.transaction("own") is None
    assert tested.state.goodbye_done(tested.now)


# ---------------------------------------------------------------- its round


def test_a_member_is_told_its_rank_once() -> None:
    tested = NodeUnderTest("b").sees(job(), sealed(3, "a", "b"), node("a"), node("b"), wide=False)
    (notice,) = tested.told(Sealed)
    assert (notice.round.number, notice.group_rank) == (3, 1)
    assert not tested.later(1.0).told(Sealed)


@pytest.mark.parametrize(
    ("high", "member", "reason"),
    [
        (2, node("a"), "the world is full, this node is a spare"),
        (4, node("a"), "waiting to be admitted"),
        (4, node("a", incarnation=LIFE, returned=3), "training is over"),
    ],
)
def test_a_node_outside_the_round_is_told_why(high: int, member: NodeRecord, reason: str) -> None:
    shown = (job(1, high), sealed(3, "a", "b"), member, node("c"))
    (notice,) = NodeUnderTest("c").sees(*shown, wide=False).told(Waiting)
    assert notice.reason.startswith(reason)
    assert (notice.have, notice.maximum) == (2, high)


@pytest.mark.parametrize(
    "orders", [[(False, False), (True, False)], [(False, True), (False, False)]]
)
def test_an_order_is_passed_on_and_so_is_another_that_follows(
    orders: list[tuple[bool, bool]],
) -> None:
    """One that is worse; or one to leave: who does not obey one to grow must hear of it."""
    tested = member()
    for broken, grows in orders:
        tested.changes(replace(switch(3, broken=broken), grows=grows))
        assert [(one.broken, one.grows) for one in tested.told(Switch)] == [(broken, grows)]
        assert not tested.later(1.0).told(Switch)


def test_a_round_that_was_called_off_before_it_was_heard_of_is_left() -> None:
    shown = (job(), sealed(3, "a", "b"), switch(3, broken=True), node("a"), node("b"))
    tested = NodeUnderTest("b").sees(*shown, wide=False)
    assert not tested.told(Sealed)
    written = tested.wrote(NodeRecord)
    assert (written.left, written.incarnation) == (3, LIFE)


def test_a_round_that_is_to_be_left_at_a_step_is_entered_though_it_was_heard_of_late() -> None:
    """The ranks of the others are connecting to its ranks, and would wait for them in vain."""
    shown = (job(), sealed(3, "a", "b"), switch(3, broken=False), node("a"), node("b"))
    tested = NodeUnderTest("b").sees(*shown, wide=False)
    assert len(tested.told(Sealed)) == 1
    assert [notice.broken for notice in tested.later(0.1).told(Switch)] == [False]


@pytest.mark.parametrize(
    "newer",
    [
        sealed(4, "a", "c"),
        sealed(3, "a", "c"),
        sealed(4, "a", "b"),
        replace(sealed(5, "a"), incarnation="another"),
    ],
)
def test_a_round_without_this_node_excludes_it(newer: RoundRecord) -> None:
    tested = member().changes(newer)
    assert len(tested.told(Excluded)) == 1
    assert not tested.later(1.0).actions


LEFT_AS_PLANNED = LeftRound(3, FaultReport(3, "planned"))


@pytest.mark.parametrize("state", ["runs", "is told to leave", "has left"])
def test_a_member_whose_lease_ran_out_stays_one_until_the_job_goes_on(state: str) -> None:
    """What its workers hold may be held by nobody else."""
    tested = member()
    if state != "runs":
        tested.changes(switch(3, broken=True))
    if state == "has left":
        tested.feed(LEFT_AS_PLANNED)
    tested.changes(gone=("nodes/b",))
    assert not tested.told(Excluded)
    seen = Expect(records.ROUND, tested.state.shown.round.version)
    assert seen in tested.request("own").expects, "nobody has gone on without it"
    assert tested.changes(sealed(4, "a", "c")).told(Excluded)


def test_so_does_one_that_has_not_heard_yet_of_a_round_that_it_is_in() -> None:
    """The lease ended in the moment of the seal."""
    tested = member().feed(LEFT_AS_PLANNED).changes(back("b", 3)).changes(gone=("nodes/b",))
    assert tested.transaction("own") is not None
    tested.changes(sealed(4, "a", "b"))
    assert [notice.round.number for notice in tested.told(Sealed)] == [4]
    assert not tested.told(Excluded)
    tested.feed(Applied("own", False), 0.1)  # the round has changed
    tested.sees(job(), sealed(4, "a", "b"), node("a"), wide=False)
    assert not tested.told(Excluded)
    assert tested.transaction("own") is not None


def test_a_key_that_was_removed_excludes_a_node_that_waits_outside_the_round() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    assert tested.changes(gone=("nodes/c",)).told(Excluded)


# ---------------------------------------------------------------- its leader


def test_the_oldest_looks_at_all_and_the_others_at_it() -> None:
    assert Look(True, frozenset()) in NodeUnderTest("a").sees(node("a"), wide=False).actions
    tested = NodeUnderTest("b").sees(node("a"), node("b"), wide=False)
    assert not [action for action in tested.actions if isinstance(action, Look)]
    tested = NodeUnderTest("b").sees(node("a"), node("b"), wide=True)
    assert Look(False, frozenset()) in tested.actions


def test_a_leader_that_said_goodbye_hides_nobody() -> None:
    tested = NodeUnderTest("c").sees(node("a"), node("c"), wide=False)
    tested.changes(node("a", status=records.GONE))
    assert Look(False, frozenset({"nodes/a"})) in tested.actions
    tested.version = 0  # b is older
    tested.sees(node("b"), node("c"), wide=False)
    assert not [action for action in tested.actions if isinstance(action, Look)]


def test_who_waits_for_the_next_round_makes_sure_that_somebody_leads() -> None:
    tested = member().feed(LeftRound(3, FaultReport(3, "failed")))
    assert tested.probes() == []
    turn = POLICY.probe_stagger
    assert tested.later(POLICY.probe_after + turn).probes() == ["a"]
    assert tested.probed("a", SILENT, 0.001).probes() == []
    assert tested.later(POLICY.probe_after + turn).probes() == ["a"]
    tested.probed("a", REFUSED, 0.001)
    assert Look(False, frozenset({"nodes/a"})) in tested.actions


# ---------------------------------------------------------------- the end


def test_the_end_is_told_once() -> None:
    tested = member().changes(OUTCOME)
    assert tested.told(Ended) == [Ended(OUTCOME)]
    assert not tested.later(1.0).told(Ended)


@pytest.mark.parametrize(
    ("ours", "theirs", "succeeded", "over"),
    [
        ({}, {}, True, False),  # the end of an earlier life is not ours
        ({"invocation": "us"}, {"invocation": "us"}, True, True),  # it is, if we have begun it
        ({"invocation": "us"}, {"invocation": "others"}, True, False),
        ({"invocation": "us"}, {"invocation": ""}, True, False),
        # Where that is asked, a run that has ended well is over for good.
        ({"once": True}, {}, True, True),
        ({"once": True}, {}, False, False),
        ({"once": True}, {"settings": "theirs"}, True, False),  # another run under its id
    ],
)
def test_a_job_that_is_over_begins_again_where_its_end_is_not_ours(
    ours: dict[str, Any], theirs: dict[str, Any], succeeded: bool, over: bool
) -> None:
    ended = OutcomeRecord(LIFE, succeeded, 1 - succeeded, "this is why")
    gone = node("a", status=records.GONE, done_round=3)
    tested = NodeUnderTest("c", replace(POLICY, **ours))
    tested.sees(job(**theirs), sealed(3, "a"), ended, gone, node("c"))
    assert bool(tested.told(Ended)) == over
    begun = tested.written(JobRecord)
    assert (begun and begun.first_round) == (None if over else 3)


def test_a_spare_that_came_back_too_late_does_not_begin_the_job_again() -> None:
    tested = NodeUnderTest("c").sees(job(1, 1), sealed(3, "a"), node("a"), node("c"), wide=False)
    tested.changes(gone=("nodes/c",))
    assert tested.told(Excluded)
    tested.feed(NewNode(node("d")))
    tested.name = "d"
    assert tested.sees(job(1, 1), sealed(3, "a"), OUTCOME, back("a", 0), wide=False).told(Ended)


@pytest.mark.parametrize(
    ("status", "goes_on"), [(records.IN, True), (records.LEAVING, False), (records.GONE, False)]
)
def test_who_leaves_knows_of_others_that_go_on(status: str, goes_on: bool) -> None:
    tested = NodeUnderTest().sees(job(), node("a"), node("b", status=status), sealed(1, "a", "b"))
    assert accompanied(tested.state) is goes_on
    assert not accompanied(tested.feed(Lost("gone")).state), "of others nothing is known by now"


def _pauses(tested: NodeUnderTest, ok: bool | None) -> list[float]:
    """After which pauses a write is tried again that always has this answer."""
    pauses = []
    for _ in range(6):
        assert tested.transaction(OWN) is not None
        tested.feed(Applied(OWN, ok, "the main loop was silent"))
        pauses.append(tested.state.in_flight[OWN].until - tested.now)
        tested.later(pauses[-1])
    return pauses


def test_a_write_that_is_seen_late_is_tried_less_and_less_often() -> None:
    tested = NodeUnderTest().sees()
    pauses = _pauses(tested, False)
    assert pauses == sorted(pauses)
    assert pauses[-1] > 10 * pauses[0]
    assert OWN not in tested.changes(node("a")).state.in_flight


def test_a_write_that_failed_is_tried_again_as_soon_as_after_the_first_time() -> None:
    pauses = _pauses(NodeUnderTest().sees(), None)
    assert pauses == pytest.approx([pauses[0]] * 6)


_OURS = replace(POLICY, torch="2.13.0+cpu", regroup="rebuild")


@pytest.mark.parametrize(
    ("torch", "regroup", "said"),
    [
        (
            "2.15.0",
            "reconfigure",
            "torch 2.13.0+cpu, and the leader of the job, a, torch 2.15.0: in",
        ),
        ("2.13.1", "reconfigure", "--regroup rebuild, and the leader of the job, a, --regroup rec"),
        ("2.13.1+cu130", "rebuild", ""),
        ("", "", ""),  # of a version that does not say
    ],
)
def test_in_place_all_nodes_have_the_torch_of_the_leader(
    torch: str, regroup: str, said: str
) -> None:
    for in_place in (True, False):  # workers that are restarted may have any
        shown = job(in_place=in_place), node("a", torch=torch, regroup=regroup), node("c")
        tested = NodeUnderTest("c", _OURS).sees(*shown, wide=False)
        found = [said in conflict.message for conflict in tested.told(Conflict)]
        assert found == [True] * bool(said and in_place)


# ---------------------------------------------------------------- when it may register


def test_a_joiner_reaches_the_group_before_it_shows_itself() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "b", "a"), node("a"), wide=False)
    assert (tested.shows(), sorted(tested.probes())) == (None, ["a", "b"])
    tested.probed("a", BUSY, 0.001).probed("b", SILENT, 0.5)
    (waiting,) = tested.told(Waiting)
    assert waiting.reason == "cannot reach b at 127.0.0.1:1098"
    assert tested.shows() is None
    # Its key is there, so it may be alive.
    tested.sees(job(), sealed(3, "b", "a"), node("a"), node("b"))
    assert tested.shows() is None
    assert tested.later(1.0).probes() == ["b"]
    assert tested.probed("b", ALIVE, 0.001).shows() is not None


def test_whom_a_node_reached_before_it_was_left_out_says_nothing_about_now() -> None:
    members = job(), sealed(3, "b", "a"), node("a")
    tested = NodeUnderTest("c").sees(*members, wide=False)
    tested.probed("a", ALIVE, 0.001).probed("b", ALIVE, 0.001)
    assert tested.shows() is not None
    tested.feed(NewNode(node("d"))).sees(*members, wide=False)
    assert (tested.shows(), sorted(tested.probes())) == (None, ["a", "b"])
    tested.probed("a", ALIVE, 0.001)
    assert tested.shows() is None
    assert tested.probed("b", ALIVE, 0.001).shows() is not None


def test_a_firewall_that_refuses_a_joiner_does_not_make_it_take_the_group_for_dead() -> None:
    """A job that trains would get another life beside it."""
    far = [node(name, address="10.0.0.1") for name in "ab"]
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), *far)
    for _ in range(3):
        tested.probed("a", REFUSED, 0.001).probed("b", REFUSED, 0.001)
        assert (tested.shows(), tested.transaction(records.JOB)) == (None, None)
        tested.later(5.0)
    # Once their leases have ended, it is a proof.
    tested.changes(gone=("nodes/a", "nodes/b"))
    assert tested.shows() is not None
    tested.changes(node("c")).probed("a", REFUSED).probed("b", REFUSED)
    assert tested.transaction(records.JOB) is not None


def test_who_was_left_out_behind_a_firewall_does_not_take_the_others_for_dead_for_ever() -> None:
    far = node("a", address="10.0.0.1")
    tested = member().feed(LeftRound(3, FaultReport(3, "failed")))
    tested.later(POLICY.probe_after + POLICY.probe_stagger).probed("a", REFUSED, 0.001)
    assert "a" in tested.state.reach.dead
    tested.feed(NewNode(node("c"))).sees(job(), sealed(4, "a"), far)
    assert (tested.shows(), tested.transaction(records.JOB)) == (None, None)


GONE_NODE = node("b", status="gone", left=3)


@pytest.mark.parametrize("answer", [SILENT, REFUSED])
@pytest.mark.parametrize("shown", [(), (GONE_NODE,)], ids=["killed", "left"])
def test_a_member_that_is_over_keeps_no_newcomer_from_those_who_wait_for_it(
    answer: str, shown: tuple[NodeRecord, ...]
) -> None:
    """At the minimum the others can begin no round in which it is no member any more."""
    group = job(2, 2), sealed(3, "a", "b"), back("a", 3)
    tested = NodeUnderTest("c").sees(*group, wide=False)
    tested.probed("a", ALIVE, 0.001).probed("b", answer, 0.5)
    assert tested.shows() is None
    # Its key says more than its silence.
    assert [action for action in tested.actions if isinstance(action, Look)] == [
        Look(True, frozenset())
    ]
    assert tested.sees(*group, *shown).shows() is not None


def test_a_member_whose_key_is_gone_may_still_train_with_the_others() -> None:
    """One who cannot reach it would break the round of all others for nothing."""
    group = job(1, 3), sealed(3, "a", "b"), node("a")
    tested = NodeUnderTest("c").sees(*group, wide=False)
    tested.probed("a", ALIVE, 0.001).probed("b", SILENT, 0.5)
    assert tested.sees(*group).shows() is None
    # Once the round is over, there is nothing to break.
    assert tested.changes(back("a", 3)).shows() is not None


def test_where_nobody_is_there_a_silent_group_disturbs_nobody() -> None:
    assert NodeUnderTest("c").sees(job(), sealed(3, "a"), wide=False).shows() is not None


@pytest.mark.parametrize("known", [True, False])
def test_another_job_under_the_run_id_is_a_conflict_if_it_lives(known: bool) -> None:
    theirs = replace(node("a"), settings="theirs")
    shown = (job(1, 2, settings="theirs", entry="other.py"),) if known else ()
    tested = NodeUnderTest("c").sees(*shown, theirs, wide=False)
    assert (tested.shows(), tested.probes()) == (None, ["a"])
    (conflict,) = tested.probed("a", ALIVE, 0.001).told(Conflict)
    assert "use the same settings or another --run-id" in conflict.message
    assert ("other.py with 1:2 nodes" in conflict.message) is known
    tested = NodeUnderTest("c").sees(*shown, theirs, wide=False).probed("a", REFUSED, 0.001)
    assert not tested.told(Conflict)


_RELEASED = replace(POLICY, protocol="2", release="0.2.0")


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
    tested = NodeUnderTest("c", _RELEASED).sees(other, node("a", settings="theirs"), wide=False)
    (waiting,) = tested.probed("a", SILENT, 0.001).told(Waiting)
    (conflict,) = tested.probed("a", ALIVE, 0.001).told(Conflict)
    assert told in conflict.message
    assert "install" not in told or "this node runs 0.2.0 (protocol 2)" in conflict.message
    assert ("of another version" in waiting.reason) is ("install" in told)


def test_a_job_says_which_version_began_it() -> None:
    written = NodeUnderTest("a", _RELEASED).sees(node("a")).wrote(JobRecord)
    assert (written.protocol, written.release) == ("2", "0.2.0")


def test_bounds_that_were_changed_while_it_runs_are_no_conflict() -> None:
    tested = NodeUnderTest("c").sees(job(2, 3), node("a"), wide=False)
    assert tested.shows() is not None


def test_the_job_of_others_that_are_gone_is_followed_by_ours() -> None:
    old = job(1, 2, settings="theirs")
    tested = NodeUnderTest("c").sees(old, sealed(3, "a"), wide=False)
    assert tested.shows() is not None
    tested.sees(old, sealed(3, "a"), node("c")).probed("a", REFUSED, 0.001)
    fresh = tested.wrote(JobRecord)
    assert (fresh.settings, fresh.first_round) == ("s", 3)


NO_SPACE = "the store answers: database space exceeded"
FULL = Applied("own", None, NO_SPACE)
STOPS_AFTER = (1 - FENCE_RESERVE) * POLICY.timeouts.fence_timeout  # without the store
LEFT = LeftRound(3, FaultReport(3, records.KILLED, "killed"))


# ---------------------------------------------------------------- the fence


def test_a_group_without_the_store_goes_on_for_most_of_the_fence() -> None:
    tested = member().feed(Lost("refused"))
    assert tested.told(StoreState) == [StoreState(False, "refused")]
    assert not tested.later(STOPS_AFTER - 0.1).told(Fenced)
    assert tested.later(0.1).told(Fenced)
    assert not tested.later(1.0).told(Fenced)


def test_the_fence_counts_from_the_last_sign_of_life_that_the_store_has_acknowledged() -> None:
    tested = member()
    tested.feed(Lost("no answer", acked_at=tested.now), 8.6)
    assert not tested.later(STOPS_AFTER - 8.7).told(Fenced)
    assert tested.later(0.1).told(Fenced)


def test_a_lease_that_is_lost_behind_a_dead_connection_is_a_loss_of_the_store() -> None:
    tested = member()
    tested.feed(LeaseLost(acked_at=tested.now), 5.0)
    assert tested.transaction("own") is not None
    tested.feed(Applied("own", None, "no answer"), POLICY.write_timeout)
    assert not tested.later(STOPS_AFTER - 9.1).told(Fenced)
    assert tested.later(0.1).told(Fenced)


def test_a_node_that_stood_still_asks_the_store_before_it_stops_its_workers() -> None:
    tested = member()
    tested.feed(LeaseLost(acked_at=tested.now), 2 * POLICY.timeouts.fence_timeout)
    assert not tested.told(Fenced)
    assert tested.transaction("own") is not None
    assert not tested.changes(node("b"), after=0.1).told(Fenced)
    assert not tested.later(POLICY.write_timeout).told(Fenced)


def test_contact_that_comes_back_in_time_saves_the_group() -> None:
    tested = member().feed(Lost("refused")).feed(Found(), 0.7 * POLICY.timeouts.fence_timeout)
    assert tested.told(StoreState) == [StoreState(True)]
    tested.feed(Lost("again"), 1.0)
    assert not tested.later(0.7 * POLICY.timeouts.fence_timeout).told(Fenced)


# ---------------------------------------------------------------- giving up


def ends_after(tested: NodeUnderTest, patience: float) -> str:
    """Asserts that the node gives up after so many seconds, and says why."""
    assert not tested.later(patience - 0.1).told(StoreTimeout)
    (said,) = tested.later(0.1).told(StoreTimeout)
    assert not tested.later(1.0).told(StoreTimeout)
    return said.why


def test_a_store_that_never_answers_is_given_the_time_to_connect() -> None:
    said = ends_after(NodeUnderTest(), POLICY.timeouts.connect_timeout)
    assert "is --rdzv-endpoint right" in said


def test_the_first_contact_takes_no_longer_than_the_node_may_wait() -> None:
    policy = replace(POLICY, timeouts=Timeouts(join_timeout=5.0))
    tested = NodeUnderTest(policy=policy).feed(Lost("refused"), 3.0)
    assert "is --rdzv-endpoint right" in ends_after(tested, 2.0)


AWAY = Lost("refused")


@pytest.mark.parametrize(
    "story",
    [
        # What is waited for began after the loss: a round, or the end; or it came while it waited.
        [(AWAY, 0.0), (LEFT, 100.0)],
        [(AWAY, 0.0), (Done(3), 100.0)],
        [(LEFT, 0.0), (AWAY, 100.0)],
        [(AWAY, 0.0), (Tick(), POLICY.timeouts.fence_timeout), (LEFT, 2.0)],  # after the fence
        # A store that comes back is given all the time again.
        [(LEFT, 0.0), (AWAY, 0.0), (Found(), 0.9 * POLICY.timeouts.join_timeout), (AWAY, 900.0)],
    ],
)
def test_who_waits_without_the_store_gives_up(story: list[tuple[Event, float]]) -> None:
    tested = member()
    for event, after in story:
        assert not tested.feed(event, after).told(StoreTimeout)
    assert "refused" in ends_after(tested, POLICY.timeouts.join_timeout)


@pytest.mark.parametrize("story", [[AWAY], [LEFT, AWAY, Goodbye()]])
def test_who_trains_or_has_said_goodbye_gives_up_nothing(story: list[Event]) -> None:
    tested = member()
    for event in story:
        tested.feed(event)
    assert not tested.later(10 * POLICY.timeouts.join_timeout).told(StoreTimeout)


# ---------------------------------------------------------------- a store that takes no writes


def full() -> NodeUnderTest:
    """A node that has left its round, and cannot say so."""
    tested = member().feed(LEFT)
    assert tested.transaction("own") is not None
    return tested.feed(FULL)


def test_a_store_that_takes_no_writes_is_told_of_time_and_again() -> None:
    tested = full()
    told = 0
    for _ in range(100):
        tested.feed(FULL if tested.transaction("own") else Tick(), 1.0)
        said = [notice for notice in tested.told(Waiting) if NO_SPACE in notice.reason]
        told += len(said)
        assert all("giving up in" in notice.reason for notice in said)
    assert told == 1 + 99 // OUTAGE_REPORT_INTERVAL


def test_it_goes_on_as_soon_as_a_write_is_taken() -> None:
    tested = full()
    while not tested.transaction("own"):
        tested.later(0.5)
    tested.feed(Applied("own", True))
    for _ in range(100):
        assert not tested.later(1.0).told(Waiting)


def test_who_waits_behind_it_gives_up() -> None:
    tested, seconds = full(), 0.0
    while not tested.told(StoreTimeout):
        tested.feed(FULL if tested.transaction("own") else Tick(), 1.0)
        seconds += 1.0
        assert seconds < POLICY.timeouts.join_timeout + 5.0
    assert seconds >= POLICY.timeouts.join_timeout
    assert NO_SPACE in tested.told(StoreTimeout)[0].why


def test_who_trains_says_it_as_well() -> None:
    tested = member().feed(Applied("events/", None, NO_SPACE))
    said = tested.later(1.0).told(StoreTrouble)
    assert said == [StoreTrouble(NO_SPACE, 1.0)]
    # Nothing more was tried, so nothing more is known.
    for _ in range(60):
        assert not tested.later(1.0).told(StoreTrouble)


# ---------------------------------------------------------------- whatever happens

EVENTS = st.one_of(
    st.just(Lost("refused")),
    st.just(Found()),
    st.just(LeaseLost()),
    st.just(StoreSnapshot((), False)),
    st.just(LEFT),
    st.just(Done(3)),
    st.just(FULL),
    st.just(Tick()),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0.0, 2000.0)), max_size=20))
def test_nobody_waits_for_ever_for_a_store_that_is_gone(story: list[tuple[Event, float]]) -> None:
    tested = member()
    last = [(Lost("gone for good"), 0.0)]
    last += [(Tick(), max(POLICY.timeouts.fence_timeout, POLICY.timeouts.join_timeout))] * 3
    for event, after in [*story, *last]:
        tested.feed(event, after)
        assert tested.wake <= tested.now + LONGEST_WAIT
        if tested.told(Fenced):
            tested.feed(LEFT, 2.0)
    gave_up = any(name.startswith("timeout/") for name in tested.state.given)
    assert gave_up or tested.state.own.excluded


# ---------------------------------------------------------------- a store that has lost its memory


def test_a_store_that_forgot_gets_the_round_back_before_anything_else() -> None:
    tested = member().sees(wide=False, forgot=True)
    assert not tested.told(Excluded)
    transaction = tested.request(records.ROUND)
    assert [put.key for put in transaction.puts] == [records.ROUND, records.JOB]
    assert transaction.expects == (Expect(records.ROUND, ABSENT),)
    assert tested.written(RoundRecord) == sealed(3, "a", "b")
    assert tested.shows() == node("b")


def test_a_newcomers_job_in_a_store_that_forgot_gives_way() -> None:
    theirs = replace(job(), incarnation="new")
    tested = member().sees(theirs, wide=False, forgot=True)
    assert tested.written(JobRecord) is None
    assert tested.written(JobRecord, records.ROUND) == job()
    # Without amnesia it is the next life of the job.
    assert member().changes(theirs, gone=("round",)).told(Excluded)


def test_nobody_seals_before_a_running_group_could_say_who_it_is() -> None:
    tested = NodeUnderTest("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    tested.sees(node("c"), forgot=True)
    for _ in range(3):
        assert tested.transaction(records.JOB) is None
        assert tested.transaction(records.ROUND) is None
        tested.later(POLICY.settle / 3)
    # Nobody said anything: what is known of the job goes on.
    assert tested.transaction(records.ROUND) is not None
    assert tested.written(RoundRecord) == sealed(3, "a", "b")


def _came_back_to_an_empty_store(after: float, was_member: bool = False) -> NodeUnderTest:
    """Node c loses the store, and finds it empty after so many seconds."""
    shown = (job(), sealed(3, "a", "c" if was_member else "b"), node("a"), node("c"))
    tested = NodeUnderTest("c").sees(*shown, wide=False)
    if was_member:
        tested.feed(LEFT)
    tested.feed(Lost("no answer", acked_at=tested.now)).feed(Found(), after)
    return tested.sees(node("c"), forgot=True)


@pytest.mark.parametrize("was_member", [False, True])
def test_who_was_away_for_the_fence_gives_an_empty_store_no_round_that_may_be_outdated(
    was_member: bool,
) -> None:
    tested = _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout, was_member)
    # Others may have begun another life and been cut off since: until their own fence is over.
    for wait in (POLICY.settle + 0.1, POLICY.timeouts.fence_timeout - POLICY.settle - 0.2):
        tested.later(wait)
        assert tested.transaction(records.ROUND) is None
        assert tested.transaction(records.JOB) is None
    tested.later(2 * POLICY.settle)
    assert tested.transaction(records.ROUND) is not None


def test_who_was_away_for_less_than_the_fence_gives_the_round_back_soon() -> None:
    tested = _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout - 1.0)
    tested.later(POLICY.settle + 0.1)
    assert tested.written(RoundRecord) == sealed(3, "a", "b")


def test_who_was_away_for_the_fence_is_told_by_a_job_in_the_store_how_things_are() -> None:
    tested = _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout)
    assert tested.state.contact.behind
    tested.changes(job(), sealed(4, "a", "b"))
    assert not tested.state.contact.behind


def test_a_store_that_refuses_us_is_told_once() -> None:
    tested = NodeUnderTest().feed(Refused("wrong password"))
    assert tested.told(StoreState) == [StoreState(False, "wrong password", refused=True)]
    assert not tested.feed(Refused("wrong password")).told(StoreState)


@pytest.mark.parametrize(
    ("key", "mended_by"),
    [
        ("job", records.ROUND),
        ("round", records.ROUND),
        ("nodes/b", "own"),
        ("switch", ""),
        ("outcome", ""),
        ("nodes/x", ""),
    ],
)
def test_what_cannot_be_read_is_reported_once_and_disturbs_nobody(key: str, mended_by: str) -> None:
    tested = member()
    before = tested.state
    junk = Changed((StoreEntry(key, b"\x80\x04 not ours", 90, 91),))
    (notice,) = tested.feed(junk).told(BadRecord)
    assert notice.key == key
    assert not tested.told(Excluded)
    assert not tested.told(Switch)
    assert tested.state.round_record == before.round_record
    written = [action.tag for action in tested.actions if isinstance(action, ApplyTransaction)]
    assert written == ([mended_by] if mended_by else [])
    assert not tested.feed(junk).told(BadRecord)


# ---------------------------------------------------------------- whom members reach

AT_STEP_5 = Budget(best_step=5)
ECHO = FaultReport(3, records.FAILED, "connection reset", consequence=True, step=9)
HANG = FaultReport(3, records.FAILED, "no step for 60 s", signature=records.HANGS, step=9)
CUT = FaultReport(
    3, records.LOST, "a does not reach c", signature=records.CUT_OFF, consequence=True, step=9
)
KILL = FaultReport(3, records.KILLED, "worker 1 was killed", step=9)


def _surveying(
    *others: NodeRecord,
    asked: bool = False,
    fault: FaultReport = ECHO,
    budget: Budget = AT_STEP_5,
    **own: object,
) -> NodeUnderTest:
    """Node a leads; round 3 (a, b, c) is broken."""
    tested = NodeUnderTest().wants(back("a", 3, fault, **own))
    last = sealed(3, "a", "b", "c", budget=budget)
    order = switch(3, broken=True, survey=asked)
    return tested.sees(job(), last, order, tested.own, *others)


@pytest.mark.parametrize("fault", [ECHO, HANG, CUT])
def test_without_a_reason_the_leader_asks_whom_they_reach(fault: FaultReport) -> None:
    tested = _surveying(back("b", 3), back("c", 3), fault=fault)
    order = tested.wrote(SwitchRecord)
    assert order.survey
    assert order.broken
    assert not tested.members()


def test_a_round_with_a_reason_is_not_held_up() -> None:
    assert _surveying(back("b", 3, KILL), back("c", 3, ECHO)).members() == ["a", "b", "c"]


def _checked(name: str, *missed: str, fault: FaultReport = ECHO) -> NodeRecord:
    return back(name, 3, fault, checked=3, unreachable=missed)


def test_the_largest_part_goes_on_and_nothing_is_counted() -> None:
    tested = _surveying(_checked("b"), asked=True, checked=3, unreachable=("c",))
    assert not tested.members(), "c has not said anything yet"
    tested.changes(_checked("c", "a"))
    assert tested.members() == ["a", "b"]
    record = tested.wrote(RoundRecord)
    assert record.reason == "no connection between a and c"
    assert (record.budget.failures, record.budget.fruitless, record.budget.lost) == (0, 0, 1)


def test_a_cut_counts_for_nothing_however_often_it_breaks_a_round() -> None:
    spent = Budget(failures=3, fruitless=4, best_step=99)
    cut: dict[str, Any] = {"checked": 3, "unreachable": ("c",)}
    others = _checked("b"), _checked("c", "a")
    tested = _surveying(*others, asked=True, fault=HANG, budget=spent, **cut)
    assert tested.wrote(RoundRecord).budget == replace(spent, lost=1)


def test_a_hang_of_members_that_all_reach_each_other_is_one() -> None:
    tested = _surveying(_checked("b"), _checked("c"), asked=True, fault=HANG, checked=3)
    assert tested.wrote(RoundRecord).budget.failures == 1


def test_who_says_nothing_in_time_is_left_out() -> None:
    tested = _surveying(_checked("b"), back("c", 3), asked=True, checked=3)
    assert tested.later(POLICY.survey_timeout).members() == ["a", "b"]


def test_where_too_few_reach_each_other_it_is_said_who_does_not() -> None:
    tested = NodeUnderTest().wants(back("a", 3, ECHO, checked=3, unreachable=("b",)))
    missed = {"b": sealed(3, "b").members[0]}
    reach = replace(tested.state.reach, missed=missed, answers={"b": SILENT})
    tested.state = replace(tested.state, reach=reach)
    order = switch(3, broken=True, survey=True)
    tested.sees(job(2, 2), sealed(3, "a", "b"), order, tested.own, _checked("b", "a"))
    (waiting,) = tested.told(Waiting)
    assert waiting.reason == "waiting for at least 2 nodes: no connection between a and b"
    written = tested.probed("b", ALIVE, 0.01).wrote(NodeRecord)
    assert not written.unreachable
    assert tested.changes(written, _checked("b")).members() == ["a", "b"]


# ---------------------------------------------------------------- a member


def _surveyed(**fields: object) -> NodeUnderTest:
    """Node b, a member of round 3 (a, b, c) that it has left."""
    tested = NodeUnderTest("b").wants(back("b", 3, ECHO, **fields))
    order = switch(3, broken=True, survey=True)
    last, lead = sealed(3, "a", "b", "c"), back("a", 3, ECHO)
    return tested.sees(job(), last, order, lead, tested.own, wide=False)


def test_a_member_that_is_asked_probes_the_others_and_says_whom_it_misses() -> None:
    tested = _surveyed()
    assert sorted(tested.probes()) == ["a", "c"]
    tested.probed("a", ALIVE, 0.01).probed("c", SILENT, 0.5)
    assert tested.transaction(OWN) is None, "one silence may be an accident"
    assert "c" in tested.probes()
    tested.probed("c", SILENT, 0.5)
    written = tested.wrote(NodeRecord)
    assert (written.checked, written.unreachable) == (3, ("c",))


@pytest.mark.parametrize("answers", [(SILENT, ALIVE), (REFUSED,)], ids=["an accident", "dead"])
def test_a_silence_that_was_an_accident_is_no_cut_and_the_dead_are_not_out_of_reach(
    answers: tuple[str, ...],
) -> None:
    tested = _surveyed().probed("a", ALIVE, 0.01)
    for answer in answers:
        tested.probed("c", answer, 0.2)
    assert (tested.own.checked, tested.own.unreachable) == (3, ())


def test_whom_it_has_missed_it_looks_for_until_they_are_there() -> None:
    tested = _surveyed().probed("a", ALIVE, 0.01).probed("c", SILENT, 0.5)
    written = tested.probed("c", SILENT, 0.5).wrote(NodeRecord)
    tested.changes(written)
    assert "c" in tested.later(1.0).probes()
    assert "c" not in tested.later(1.0).probes(), "one of a node at a time"
    tested.probed("c", ALIVE, 0.1)
    assert not tested.wrote(NodeRecord).unreachable


def test_who_was_left_out_looks_for_the_members_of_the_round_that_runs() -> None:
    tested = _surveyed(checked=3, unreachable=("a",)).changes(sealed(4, "a", "c"), gone=("switch",))
    assert sorted(tested.probes()) == ["a", "c"]
    tested.probed("a", ALIVE, 0.01).probed("c", ALIVE, 0.01)
    written = tested.wrote(NodeRecord)
    assert (written.checked, written.unreachable) == (4, ())


@pytest.mark.parametrize("answer", [ALIVE, BUSY, SILENT])
def test_an_agent_hears_whether_the_others_are_in_reach(answer: str) -> None:
    tested = NodeUnderTest("b")
    tested.sees(job(), sealed(3, "a", "b"), node("a"), tested.own, wide=False)
    assert tested.later().probes() == [], "a round that runs is not disturbed"
    assert tested.feed(LookForMembers(3)).probes() == ["a"]
    tested.probed("a", answer, 0.5)
    if answer == SILENT:
        tested.probed("a", answer, 0.5)
    (found,) = tested.told(Surveyed)
    missed, busy = (("a",) if answer == one else () for one in (SILENT, BUSY))
    assert found == Surveyed(3, missed, busy)


# ---------------------------------------------------------------- joiners


@pytest.mark.parametrize(
    ("newcomer", "reason"), [(node("c"), "node c joins"), (back("c", 3), "node c is back")]
)
def test_nobody_is_let_in_who_does_not_reach_a_member(newcomer: NodeRecord, reason: str) -> None:
    tested = NodeUnderTest()
    apart = replace(newcomer, checked=4, unreachable=("a",))
    tested.sees(job(), sealed(4, "a", "b"), tested.own, back("b", 3), apart).settle()
    assert tested.later(60.0).transaction(records.SWITCH) is None
    assert tested.changes(replace(apart, unreachable=())).wrote(SwitchRecord).reason == reason
