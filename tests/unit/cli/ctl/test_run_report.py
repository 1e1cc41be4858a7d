"""What the records of a run say about it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from elastic_runtime.cli.ctl import run_report as r
from elastic_runtime.cli.ctl.run_report import RunRecords, make_report, read_records
from elastic_runtime.protocol.records import (
    EventRecord,
    OutcomeRecord,
    Record,
    SwitchRecord,
)
from elastic_runtime.rendezvous.core.round_parts import split_round
from elastic_runtime.rendezvous.policy import Layout
from elastic_runtime.rendezvous.store_contract import StoreEntry
from tests.unit.cli.ctl.runs import JOB, ROUND, RUNNING, A, B, C


def _entry(key: str, record: Record, created: int = 1) -> StoreEntry:
    return StoreEntry(key, record.encode(), created, created)


def _roles(records: RunRecords) -> list[tuple[str, str, str]]:
    return [(line.name, line.role, line.ranks) for line in r.node_lines(records, {})]


def test_a_job_in_place_shows_how_its_ranks_regroup() -> None:
    assert make_report("run", "etcd://h", RUNNING, {}).regroup == ""
    one, *more = RUNNING.nodes.values()
    nodes = {each.node: each for each in (replace(one, torch="2.15.0", regroup="rebuild"), *more)}
    in_place = replace(RUNNING, nodes=nodes, job=replace(JOB, in_place=True))
    report = make_report("run", "etcd://h", in_place, {})
    assert report.regroup == "rebuild (torch 2.15.0)"
    assert make_report("run", "", replace(in_place, job=JOB), {}).regroup == ""


def test_a_running_job() -> None:
    report = make_report("run", "etcd://h", RUNNING, {"a1": {"node": "a1", "step": 45}})
    assert (report.state, report.round, report.world_size, report.step) == ("running", 3, 3, 45)
    assert (report.bounds, report.launch_bounds) == ((1, 2), (1, 3))
    assert (report.failures, report.killed, report.lost, report.planned) == (1, 2, 3, 4)
    assert report.reason == "node d lost"
    assert [line.answers for line in report.nodes] == [True, False]
    assert _roles(RUNNING) == [("a", "member", "0-1"), ("b", "member", "2")]


def test_who_does_not_reach_whom_is_shown() -> None:
    nodes = {"a1": A, "b1": B, "c1": replace(C, unreachable=("a1", "gone"))}
    report = make_report("run", "etcd://h", replace(RUNNING, nodes=nodes), {})
    assert report.apart == "no connection between a and c"
    assert make_report("run", "etcd://h", RUNNING, {}).apart == ""


def test_the_roles_of_nodes() -> None:
    vanished = replace(RUNNING, nodes={"a1": A})
    assert _roles(vanished)[1] == ("b", "silent", "2")
    leaving = replace(RUNNING, nodes={"a1": A, "b1": replace(B, status="draining")})
    assert _roles(leaving)[1] == ("b", "leaving", "2")
    done = replace(RUNNING, nodes={"a1": A, "b1": replace(B, status="done")})
    assert _roles(done)[1] == ("b", "done", "2")
    back = replace(RUNNING, nodes={"a1": A, "b1": replace(B, left=3)})
    assert _roles(back)[1] == ("b", "between rounds", "2")
    older = replace(RUNNING, nodes={"a1": A, "b1": replace(B, left=9, incarnation="old")})
    assert _roles(older)[1] == ("b", "member", "2")
    third = {"a1": A, "b1": B, "c1": C}
    assert _roles(replace(RUNNING, nodes=third))[2] == ("c", "spare", "")
    grown = replace(RUNNING, nodes=third, job=replace(JOB, max_nodes=3))
    assert _roles(grown)[2] == ("c", "joining", "")
    gone = replace(RUNNING, nodes={**third, "c1": replace(C, status="gone")})
    assert len(_roles(gone)) == 2


def test_nodes_of_a_job_that_is_over_have_ended_and_are_not_missed() -> None:
    over = replace(RUNNING, outcome=OutcomeRecord("life", True, 0, "all well"))
    left = replace(over, nodes={"a1": replace(A, status="gone")})  # b's key has vanished already
    assert _roles(left) == [("a", "ended", "0-1"), ("b", "ended", "2")]
    assert _roles(replace(over, nodes={"a1": A}))[0] == ("a", "member", "0-1")  # it is on its way


def test_the_states_of_a_job() -> None:
    def state(**changes: Any) -> str:
        return make_report("run", "", replace(RUNNING, **changes), {}).state

    end = OutcomeRecord("life", False, 1, "ValueError: x", node="b")
    assert state() == r.RUNNING
    assert state(round=None) == r.STARTING
    assert state(switch=SwitchRecord(3, "life", True, "b broke")) == r.CHANGING
    assert state(switch=SwitchRecord(2, "life", True, "b broke")) == r.RUNNING
    assert state(nodes={"a1": A, "b1": replace(B, left=3)}) == r.CHANGING
    assert state(nodes={}) == r.DEAD
    assert state(nodes={"a1": replace(A, status="gone")}) == r.DEAD
    assert state(outcome=end) == r.FAILED
    assert state(outcome=replace(end, succeeded=True), nodes={}) == r.SUCCEEDED
    assert state(outcome=replace(end, incarnation="an older life")) == r.RUNNING
    failed = make_report("run", "", replace(RUNNING, outcome=end), {})
    assert (failed.outcome, failed.over) == ("ValueError: x (on b)", True)


def test_records_are_read_and_bad_ones_named() -> None:
    late, early = (EventRecord(at, "x", 1, "a", "t") for at in (2.0, 1.0))
    records = read_records(
        [
            _entry("job", JOB),
            _entry("round", ROUND),
            _entry("nodes/a1", A),
            _entry("events/0", late),
            _entry("events/1", early),
            StoreEntry("switch", b"\x80\x04pickle", 1, 1),
            StoreEntry("nodes/z", b"{}", 1, 1),
            StoreEntry("something/else", b"?", 1, 1),
        ]
    )
    assert (records.job, records.round, records.switch) == (JOB, ROUND, None)
    assert records.nodes == {"a1": A}
    assert records.events == (early, late)
    assert [key for key, _ in records.bad] == ["switch", "nodes/z"]
    assert read_records([]).empty


def test_the_members_of_a_large_round_are_found_in_its_parts() -> None:
    head, (write,) = split_round(ROUND, Layout(most=1, part=1, first=1))
    parts = [StoreEntry(put.key, put.value, 1, 1) for put in write.puts]
    nodes = [_entry("nodes/a1", A), _entry("nodes/b1", B)]
    whole = read_records([_entry("job", JOB), _entry("round", head), *nodes, *parts])
    assert whole.round is not None
    assert whole.round.members == ROUND.members
    assert _roles(whole) == _roles(RUNNING)
    some = read_records([_entry("job", JOB), _entry("round", head)])
    assert _roles(some) == [("a", "silent", "0-1")]


def test_an_answer_that_makes_no_sense_is_no_step() -> None:
    assert make_report("run", "", RUNNING, {"b1": {"step": "many"}}).step == 40


def test_the_json_form_is_plain() -> None:
    event = EventRecord(1.0, "round.sealed", 1, "a", "t")
    report = make_report("run", "etcd://h", replace(RUNNING, events=(event,)), {})
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["nodes"][0]["ranks"] == "0-1"
    assert plain["events"][0]["name"] == "round.sealed"


def test_it_is_said_where_nodes_are_and_odd_text_of_theirs_is_not() -> None:
    nodes = {"a1": replace(A, topology="/z1/r1"), "c1": replace(C, topology="z//\x1b[31m")}
    report = make_report("run", "etcd://h", replace(RUNNING, nodes=nodes), {})
    assert [line.topology for line in report.nodes] == ["z1/r1", "", ""]
