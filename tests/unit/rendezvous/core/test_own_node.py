"""What a node does about itself: its key, its rounds, its leader, and what it tells its agent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import (
    DONE,
    DRAINING,
    GONE,
    IN,
    JOB,
    ROUND,
    FaultReport,
    JobRecord,
    NodeRecord,
    OutcomeRecord,
    RoundRecord,
)
from elastic_runtime.rendezvous.core.events import (
    ALIVE,
    BUSY,
    REFUSED,
    SILENT,
    Applied,
    Done,
    Drain,
    Goodbye,
    LeftRound,
    NewNode,
    Probed,
    Tick,
)
from elastic_runtime.rendezvous.core.formation.member_status import accompanied
from elastic_runtime.rendezvous.core.node_state import OWN, Apply, Follow, Look
from elastic_runtime.rendezvous.core.notices import (
    BadRecord,
    Conflict,
    Ended,
    Excluded,
    Sealed,
    StoreState,
    Switch,
    Waiting,
)
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Changed,
    Entry,
    Expect,
    Found,
    LeaseLost,
    Lost,
    Refused,
)
from tests.unit.rendezvous.seat import LIFE, POLICY, Seat, back, job, node, sealed, switch

OUTCOME = OutcomeRecord(LIFE, True, 0, "the script ended well on all")


def _member(name: str = "b", *shown: object) -> Seat:
    """A node that runs round 3 of a and b; a leads."""
    nodes = shown or (job(), sealed(3, "a", "b"), node("a"), node("b"))
    seat = Seat(name).sees(*nodes, wide=False)  # type: ignore[arg-type]
    assert seat.told(Sealed)
    return seat


def _own(seat: Seat) -> NodeRecord | None:
    return seat.written(NodeRecord, "own")


# ---------------------------------------------------------------- its key


def test_a_node_shows_itself_under_a_lease() -> None:
    seat = Seat()
    assert seat.actions == [Follow("nodes/a")]
    transaction = seat.sees(wide=False).transaction("own")
    assert transaction is not None
    assert transaction.expects == (Expect("nodes/a", ABSENT),)
    assert transaction.puts[0].leased


def test_a_write_is_not_repeated_before_it_can_be_seen() -> None:
    seat = Seat().sees(wide=False)
    assert seat.feed(Tick(), 0.01).transaction("own") is None
    assert seat.feed(Applied("own", True)).transaction("own") is None
    assert seat.changes(node("a")).transaction("own") is None


@pytest.mark.parametrize(("ok", "pause"), [(False, 0.05), (None, 0.2)])
def test_a_write_that_failed_is_tried_again_after_a_pause(ok: bool | None, pause: float) -> None:
    seat = Seat().sees(wide=False).feed(Applied("own", ok))
    assert seat.transaction("own") is None
    assert seat.wake == seat.now + pause
    assert seat.feed(Tick(), pause).transaction("own") is not None


def test_an_answer_that_comes_after_the_change_holds_nothing_up() -> None:
    seat = _member()
    seat.feed(Done(3))
    through = node("b", status=DONE, incarnation=LIFE, done_round=3)
    seat.changes(through).feed(Applied("own", True))
    assert _own(seat.feed(Goodbye())) == replace(through, status=GONE)


def test_what_the_agent_says_is_written() -> None:
    seat = _member()
    fault = FaultReport(3, "failed", "ValueError: x", step=12)
    written = _own(seat.feed(LeftRound(3, fault, store_port=77)))
    assert written == node(
        "b", incarnation=LIFE, left=3, rank=1, fault=fault, step=12, store_port=77
    )
    drained = _own(_member().feed(Drain()))
    assert drained is not None
    assert drained.status == "draining"


def test_a_goodbye_outlives_the_lease_and_is_known_to_be_said() -> None:
    seat = _member().feed(Goodbye())
    transaction = seat.transaction("own")
    assert transaction is not None
    assert not transaction.puts[0].leased
    assert not seat.state.parted(seat.now)
    seat.changes(node("b", status=GONE))
    assert seat.state.parted(seat.now)


def test_nobody_needs_the_goodbye_of_a_node_that_was_never_seen() -> None:
    seat = Seat().feed(Goodbye()).sees(wide=False)
    assert seat.transaction("own") is None
    assert seat.state.parted(seat.now)


def test_a_member_whose_lease_ran_out_returns_if_nobody_went_on_without_it() -> None:
    seat = _member().changes(gone=("nodes/b",))
    assert not seat.told(Excluded)
    transaction = seat.transaction("own")
    assert transaction is not None
    assert Expect(ROUND, seat.state.round.version) in transaction.expects


def test_after_a_lost_lease_the_key_is_put_under_a_new_one() -> None:
    assert _member().feed(LeaseLost()).transaction("own") is not None


# ---------------------------------------------------------------- its round


def test_a_member_is_told_its_rank_once() -> None:
    seat = Seat("b").sees(job(), sealed(3, "a", "b"), node("a"), node("b"), wide=False)
    (notice,) = seat.told(Sealed)
    assert (notice.round.number, notice.group_rank) == (3, 1)
    assert not seat.feed(Tick(), 1.0).told(Sealed)


@pytest.mark.parametrize(
    ("high", "reason"),
    [(2, "the world is full, this node is a spare"), (4, "waiting to be let in")],
)
def test_a_node_outside_the_round_is_told_why(high: int, reason: str) -> None:
    shown = (job(1, high), sealed(3, "a", "b"), node("a"), node("c"))
    (notice,) = Seat("c").sees(*shown, wide=False).told(Waiting)
    assert (notice.reason, notice.have, notice.maximum) == (reason, 2, high)


def test_an_order_to_leave_is_passed_on_and_passed_on_again_when_it_gets_worse() -> None:
    seat = _member().changes(switch(3, broken=False))
    assert [notice.broken for notice in seat.told(Switch)] == [False]
    assert not seat.feed(Tick(), 1.0).told(Switch)
    assert [notice.broken for notice in seat.changes(switch(3, broken=True)).told(Switch)] == [True]


def test_a_round_that_was_called_off_before_it_was_heard_of_is_left() -> None:
    shown = (job(), sealed(3, "a", "b"), switch(3, broken=True), node("a"), node("b"))
    seat = Seat("b").sees(*shown, wide=False)
    assert not seat.told(Sealed)
    written = _own(seat)
    assert written is not None
    assert (written.left, written.incarnation) == (3, LIFE)


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
    seat = _member().changes(newer)
    assert len(seat.told(Excluded)) == 1
    assert not seat.feed(Tick(), 1.0).actions


LEFT = LeftRound(3, FaultReport(3, "planned"))


@pytest.mark.parametrize("event", [LEFT, None], ids=["has left", "is told to"])
def test_a_member_whose_lease_ran_out_stays_one_until_the_job_goes_on(
    event: LeftRound | None,
) -> None:
    """What its workers hold may be held by nobody else."""
    seat = _member().changes(switch(3, broken=True))
    if event is not None:
        seat.feed(event)
    seat.changes(gone=("nodes/b",))
    assert not seat.told(Excluded)
    transaction = seat.transaction("own")
    assert transaction is not None
    assert ROUND in {expect.key for expect in transaction.expects}, "nobody has gone on without it"
    assert seat.changes(sealed(4, "a", "c")).told(Excluded)


def test_so_does_one_that_has_not_heard_yet_of_a_round_that_it_is_in() -> None:
    """The lease ended in the moment of the seal."""
    seat = _member().feed(LEFT).changes(back("b", 3)).changes(gone=("nodes/b",))
    assert seat.transaction("own") is not None
    seat.changes(sealed(4, "a", "b"))
    (notice,) = seat.told(Sealed)
    assert not seat.told(Excluded)
    seat.feed(Applied("own", False), 0.1)  # the round has changed
    seat.sees(job(), sealed(4, "a", "b"), node("a"), wide=False)
    assert not seat.told(Excluded)
    assert seat.transaction("own") is not None
    assert notice.round.number == 4


def test_a_key_that_was_removed_excludes_a_node_that_waits_outside_the_round() -> None:
    seat = Seat("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    assert seat.changes(gone=("nodes/c",)).told(Excluded)


# ---------------------------------------------------------------- its leader


def test_the_oldest_looks_at_all_and_the_others_at_it() -> None:
    assert Look(True, frozenset()) in Seat("a").sees(node("a"), wide=False).actions
    seat = Seat("b").sees(node("a"), node("b"), wide=False)
    assert not [action for action in seat.actions if isinstance(action, Look)]
    seat = Seat("b").sees(node("a"), node("b"), wide=True)
    assert Look(False, frozenset()) in seat.actions


def test_a_leader_that_said_goodbye_hides_nobody() -> None:
    seat = Seat("c").sees(node("a"), node("c"), wide=False).changes(node("a", status=GONE))
    assert Look(False, frozenset({"nodes/a"})) in seat.actions
    seat.version = 0  # b is older
    seat.sees(node("b"), node("c"), wide=False)
    assert not [action for action in seat.actions if isinstance(action, Look)]


def test_who_waits_for_the_next_round_makes_sure_that_somebody_leads() -> None:
    seat = _member().feed(LeftRound(3, FaultReport(3, "failed")))
    assert seat.probes() == []
    turn = POLICY.ahead
    assert seat.feed(Tick(), POLICY.probe_after + turn).probes() == ["a"]
    assert seat.feed(Probed("a", SILENT), 0.1).probes() == []
    assert seat.feed(Tick(), POLICY.probe_every).probes() == ["a"]
    seat.feed(Probed("a", REFUSED), 0.001)
    assert Look(False, frozenset({"nodes/a"})) in seat.actions


# ---------------------------------------------------------------- the entrance


def test_a_joiner_reaches_the_group_before_it_shows_itself() -> None:
    seat = Seat("c").sees(job(), sealed(3, "b", "a"), node("a"), wide=False)
    assert (_own(seat), sorted(seat.probes())) == (None, ["a", "b"])
    seat.feed(Probed("a", BUSY), 0.001).feed(Probed("b", SILENT), 0.5)
    (waiting,) = seat.told(Waiting)
    assert waiting.reason == "cannot reach b at 127.0.0.1:1098"
    assert _own(seat) is None
    assert seat.feed(Tick(), 1.0).probes() == ["b"]
    assert _own(seat.feed(Probed("b", ALIVE), 0.001)) is not None


def test_whom_a_node_reached_before_it_was_left_out_says_nothing_about_now() -> None:
    members = job(), sealed(3, "b", "a"), node("a")
    seat = Seat("c").sees(*members, wide=False)
    seat.feed(Probed("a", ALIVE), 0.001).feed(Probed("b", ALIVE), 0.001)
    assert _own(seat) is not None
    seat.feed(NewNode(node("d"))).sees(*members, wide=False)
    assert (_own(seat), sorted(seat.probes())) == (None, ["a", "b"])
    seat.feed(Probed("a", ALIVE), 0.001)
    assert _own(seat) is None
    assert _own(seat.feed(Probed("b", ALIVE), 0.001)) is not None


def test_a_firewall_that_refuses_a_joiner_does_not_make_it_take_the_group_for_dead() -> None:
    """A job that trains would get another life beside it."""
    far = [node(name, address="10.0.0.1") for name in "ab"]
    seat = Seat("c").sees(job(), sealed(3, "a", "b"), *far)
    for _ in range(3):
        seat.feed(Probed("a", REFUSED), 0.001).feed(Probed("b", REFUSED), 0.001)
        assert (_own(seat), seat.transaction(JOB)) == (None, None)
        seat.feed(Tick(), 5.0)
    # Once their leases have ended, it is a proof.
    seat.changes(gone=("nodes/a", "nodes/b"))
    assert _own(seat) is not None
    seat.changes(node("c")).feed(Probed("a", REFUSED)).feed(Probed("b", REFUSED))
    assert seat.transaction(JOB) is not None


def test_who_was_left_out_behind_a_firewall_does_not_take_the_others_for_dead_for_ever() -> None:
    far = node("a", address="10.0.0.1")
    seat = _member().feed(LeftRound(3, FaultReport(3, "failed")))
    seat.feed(Tick(), POLICY.probe_after + POLICY.ahead).feed(Probed("a", REFUSED), 0.001)
    assert "a" in seat.state.dead
    seat.feed(NewNode(node("c"))).sees(job(), sealed(4, "a"), far)
    assert (_own(seat), seat.transaction(JOB)) == (None, None)


def test_where_nobody_is_there_a_silent_group_disturbs_nobody() -> None:
    assert _own(Seat("c").sees(job(), sealed(3, "a"), wide=False)) is not None


@pytest.mark.parametrize("known", [True, False])
def test_another_job_under_the_run_id_is_a_conflict_if_it_lives(known: bool) -> None:
    theirs = replace(node("a"), settings="theirs")
    shown = (job(1, 2, settings="theirs", entry="other.py"),) if known else ()
    seat = Seat("c").sees(*shown, theirs, wide=False)
    assert (_own(seat), seat.probes()) == (None, ["a"])
    (conflict,) = seat.feed(Probed("a", ALIVE), 0.001).told(Conflict)
    assert "use the same settings or another --run-id" in conflict.message
    assert ("other.py with 1:2 nodes" in conflict.message) is known
    seat = Seat("c").sees(*shown, theirs, wide=False).feed(Probed("a", REFUSED), 0.001)
    assert not seat.told(Conflict)


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
    seat = Seat("c", _OURS).sees(other, node("a", settings="theirs"), wide=False)
    (waiting,) = seat.feed(Probed("a", SILENT), 0.001).told(Waiting)
    (conflict,) = seat.feed(Probed("a", ALIVE), 0.001).told(Conflict)
    assert told in conflict.message
    assert "install" not in told or "this node runs 0.2.0 (protocol 2)" in conflict.message
    assert ("of another version" in waiting.reason) is ("install" in told)


def test_a_job_says_which_version_began_it() -> None:
    written = Seat("a", _OURS).sees(node("a")).written(JobRecord, JOB)
    assert written is not None
    assert (written.protocol, written.release) == ("2", "0.2.0")


def test_bounds_that_were_changed_while_it_runs_are_no_conflict() -> None:
    seat = Seat("c").sees(job(2, 3), node("a"), wide=False)
    assert _own(seat) is not None


def test_the_job_of_others_that_are_gone_is_followed_by_ours() -> None:
    old = job(1, 2, settings="theirs")
    seat = Seat("c").sees(old, sealed(3, "a"), wide=False)
    assert _own(seat) is not None
    seat.sees(old, sealed(3, "a"), node("c")).feed(Probed("a", REFUSED), 0.001)
    fresh = seat.written(JobRecord, JOB)
    assert fresh is not None
    assert (fresh.settings, fresh.first_round) == ("s", 3)


# ---------------------------------------------------------------- the store


def test_a_store_that_forgot_gets_the_round_back_before_anything_else() -> None:
    seat = _member().sees(wide=False, forgot=True)
    assert not seat.told(Excluded)
    transaction = seat.transaction(ROUND)
    assert transaction is not None
    assert [put.key for put in transaction.puts] == [ROUND, JOB]
    assert transaction.expects == (Expect(ROUND, ABSENT),)
    assert seat.written(RoundRecord, ROUND) == sealed(3, "a", "b")
    assert _own(seat) == node("b")


def test_a_newcomers_job_in_a_store_that_forgot_gives_way() -> None:
    theirs = replace(job(), incarnation="new")
    seat = _member().sees(theirs, wide=False, forgot=True)
    assert seat.written(JobRecord, JOB) is None
    assert seat.written(JobRecord, ROUND) == job()
    # Without amnesia it is the next life of the job.
    assert _member().changes(theirs, gone=("round",)).told(Excluded)


def test_nobody_seals_before_a_running_group_could_say_who_it_is() -> None:
    seat = Seat("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    seat.sees(node("c"), forgot=True)
    for _ in range(3):
        assert seat.transaction(JOB) is None
        assert seat.transaction(ROUND) is None
        seat.feed(Tick(), POLICY.settle / 3)
    # Nobody said anything: what is known of the job goes on.
    assert seat.transaction(ROUND) is not None
    assert seat.written(RoundRecord, ROUND) == sealed(3, "a", "b")


def _came_back_to_an_empty_store(after: float, seat: Seat) -> Seat:
    """A node loses the store, and finds it empty after so many seconds."""
    seat.feed(Lost("no answer", acked_at=seat.now)).feed(Found(), after)
    return seat.sees(node(seat.name), forgot=True)


@pytest.mark.parametrize("was_member", [False, True])
def test_who_was_away_for_the_fence_gives_an_empty_store_no_round_that_may_be_outdated(
    was_member: bool,
) -> None:
    shown = (job(), sealed(3, "a", "c" if was_member else "b"), node("a"), node("c"))
    seat = Seat("c").sees(*shown, wide=False)
    if was_member:
        seat.feed(LeftRound(3, FaultReport(3, "killed", "killed")))
    _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout, seat)
    # Others may have begun another life and been cut off since: until their own fence is over.
    for wait in (POLICY.settle + 0.1, POLICY.timeouts.fence_timeout - POLICY.settle - 0.2):
        seat.feed(Tick(), wait)
        assert seat.transaction(ROUND) is None
        assert seat.transaction(JOB) is None
    seat.feed(Tick(), 2 * POLICY.settle)
    assert seat.transaction(ROUND) is not None


def test_who_was_away_for_less_than_the_fence_gives_the_round_back_soon() -> None:
    seat = Seat("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout - 1.0, seat)
    seat.feed(Tick(), POLICY.settle + 0.1)
    assert seat.written(RoundRecord, ROUND) == sealed(3, "a", "b")


def test_who_was_away_for_the_fence_is_told_by_a_job_in_the_store_how_things_are() -> None:
    seat = Seat("c").sees(job(), sealed(3, "a", "b"), node("a"), node("c"), wide=False)
    _came_back_to_an_empty_store(POLICY.timeouts.fence_timeout, seat)
    assert seat.state.behind
    seat.changes(job(), sealed(4, "a", "b"))
    assert not seat.state.behind


def test_a_store_that_refuses_us_is_told_once() -> None:
    seat = Seat().feed(Refused("wrong password"))
    assert seat.told(StoreState) == [StoreState(False, "wrong password", refused=True)]
    assert not seat.feed(Refused("wrong password")).told(StoreState)


@pytest.mark.parametrize(
    ("key", "mended_by"),
    [
        ("job", ROUND),
        ("round", ROUND),
        ("nodes/b", "own"),
        ("switch", ""),
        ("outcome", ""),
        ("nodes/x", ""),
    ],
)
def test_what_cannot_be_read_is_reported_once_and_disturbs_nobody(key: str, mended_by: str) -> None:
    seat = _member()
    before = seat.state
    junk = Changed((Entry(key, b"\x80\x04 not ours", 90, 91),))
    (notice,) = seat.feed(junk).told(BadRecord)
    assert notice.key == key
    assert not seat.told(Excluded)
    assert not seat.told(Switch)
    assert seat.state.round_record == before.round_record
    written = [action.tag for action in seat.actions if isinstance(action, Apply)]
    assert written == ([mended_by] if mended_by else [])
    assert not seat.feed(junk).told(BadRecord)


# ---------------------------------------------------------------- the end


def test_the_end_is_told_once() -> None:
    seat = _member().changes(OUTCOME)
    assert seat.told(Ended) == [Ended(OUTCOME)]
    assert not seat.feed(Tick(), 1.0).told(Ended)


def test_the_end_of_an_earlier_life_is_not_ours() -> None:
    shown = (job(), sealed(3, "a"), OUTCOME, node("a", status=GONE, done_round=3))
    seat = Seat("c").sees(*shown, node("c"))
    assert not seat.told(Ended)
    fresh = seat.written(JobRecord, JOB)
    assert fresh is not None
    assert fresh.first_round == 3


@pytest.mark.parametrize(("started_by", "over"), [("us", True), ("others", False), ("", False)])
def test_a_job_of_our_own_start_that_is_over_does_not_begin_again(
    started_by: str, over: bool
) -> None:
    seat = Seat("c", replace(POLICY, invocation="us"))
    ended = node("a", status=GONE, done_round=3)
    seat.sees(job(invocation=started_by), sealed(3, "a"), OUTCOME, ended, node("c"))
    assert bool(seat.told(Ended)) == over
    assert (seat.written(JobRecord, JOB) is None) == over


def test_a_spare_that_came_back_too_late_does_not_begin_the_job_again() -> None:
    seat = Seat("c").sees(job(1, 1), sealed(3, "a"), node("a"), node("c"), wide=False)
    seat.changes(gone=("nodes/c",))
    assert seat.told(Excluded)
    seat.state = replace(seat.state, record=node("d"), excluded=False, old_outcome=None)
    seat.name = "d"
    seat.state = replace(seat.state, registered=False, stored=None, snapshot=False)
    assert seat.sees(job(1, 1), sealed(3, "a"), OUTCOME, back("a", 0), wide=False).told(Ended)


@pytest.mark.parametrize(("status", "goes_on"), [(IN, True), (DRAINING, False), (GONE, False)])
def test_who_leaves_knows_of_others_that_go_on(status: str, goes_on: bool) -> None:
    seat = Seat().sees(job(), node("a"), node("b", status=status), sealed(1, "a", "b"))
    assert accompanied(seat.state) is goes_on
    assert not accompanied(seat.feed(Lost("gone")).state), "of others nothing is known by now"


def test_a_write_that_is_seen_late_is_tried_less_and_less_often() -> None:
    seat = Seat().sees()
    pauses = []
    for _ in range(6):
        assert seat.transaction(OWN) is not None
        seat.feed(Applied(OWN, False))
        pauses.append(seat.state.holds[OWN] - seat.now)
        seat.feed(Tick(), pauses[-1])
    assert pauses == sorted(pauses)
    assert pauses[-1] > 10 * pauses[0]
    seat.changes(node("a"))
    assert not seat.state.tries


def test_a_write_that_failed_is_tried_again_as_soon_as_after_the_first_time() -> None:
    seat = Seat().sees()
    pauses = set()
    for _ in range(6):
        assert seat.transaction(OWN) is not None
        seat.feed(Applied(OWN, None, "the main loop was silent"))
        pauses.add(round(seat.state.holds[OWN] - seat.now, 6))
        seat.feed(Tick(), max(pauses))
    assert len(pauses) == 1
