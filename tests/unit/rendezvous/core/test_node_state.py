"""What a node reads out of the records that the store shows."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.protocol.records import GONE, OutcomeRecord
from elastic_runtime.rendezvous.core.node_state import NodeState, Timer
from elastic_runtime.rendezvous.core.notices import StoreState
from elastic_runtime.rendezvous.policy import Policy
from tests.unit.rendezvous.node_under_test import LIFE, NodeUnderTest, job, node, sealed, switch


def seen(*records: object, **fields: object) -> NodeState:
    return NodeUnderTest("a").sees(job(**fields), node("a"), *records).state  # type: ignore[arg-type]


def test_records_of_another_life_of_the_job_do_not_count() -> None:
    ended = OutcomeRecord(LIFE, True, 0, "done")
    state = seen(sealed(3, "a"), switch(3, broken=True), ended)
    assert state.round_record is not None
    assert state.switch_record is not None
    assert state.outcome_record == ended
    later = seen(sealed(3, "a"), switch(3, broken=True), ended, incarnation="next")
    assert later.round_record is None
    assert later.switch_record is None
    assert later.outcome_record is None


def test_an_order_to_leave_an_earlier_round_does_not_count() -> None:
    assert seen(sealed(4, "a"), switch(3, broken=True)).switch_record is None


def test_a_job_with_other_settings_is_that_of_strangers() -> None:
    assert not seen().stranger
    assert seen(settings="others").stranger
    assert not seen(settings="").stranger, "an older version did not write them down"


def test_a_timer_that_runs_goes_on_and_can_begin_anew() -> None:
    state = NodeState(Policy()).start(Timer.WAITING, 5.0).start(Timer.WAITING, 9.0)
    assert (state.timers[Timer.WAITING], state.waits) == (5.0, True)
    assert state.restart(Timer.WAITING, 9.0).timers[Timer.WAITING] == 9.0
    assert not state.stop(Timer.WAITING, Timer.NO_JOB).waits


def test_a_request_is_under_way_until_its_time_and_its_tries_are_kept() -> None:
    state = NodeState(Policy()).with_pending("job", 5.0)
    assert (state.pending("job", 4.0), state.pending("job", 5.0)) == (True, False)
    assert not state.pending("round", 4.0)
    tried = replace(state, in_flight={"job": replace(state.in_flight["job"], tries=3)})
    assert tried.with_pending("job", 9.0).in_flight["job"].tries == 3


def test_a_notice_is_given_once_if_it_is_to_be() -> None:
    notice = StoreState(True)
    state = NodeState(Policy()).with_notice(notice, once="x").with_notice(notice, once="x")
    assert state.notices == (notice,)
    assert state.with_notice(notice).notices == (notice, notice)


def test_a_goodbye_is_done_when_the_store_has_it_or_nothing_of_this_node() -> None:
    tested = NodeUnderTest("a").sees(job(), node("a"))
    tested.wants(node("a", status=GONE))
    assert not tested.state.goodbye_done(tested.now)
    said = replace(tested.state, own=replace(tested.state.own, stored=node("a", status=GONE)))
    assert said.goodbye_done(tested.now)
    assert not tested.wants(node("a")).state.goodbye_done(tested.now)
