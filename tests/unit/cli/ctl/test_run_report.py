"""What the records of a run say about it, and what a terminal shows of that."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from rich.console import Console

from elastic_runtime.cli.ctl import run_report as r
from elastic_runtime.cli.ctl import run_screen
from elastic_runtime.cli.ctl.run_report import RunRecords, make_report, read_records
from elastic_runtime.protocol.records import EventRecord, OutcomeRecord, Record, SwitchRecord
from elastic_runtime.rendezvous.core.round_parts import split_round
from elastic_runtime.rendezvous.policy import Layout
from elastic_runtime.rendezvous.store_contract import StoreEntry
from tests.unit.cli.ctl.runs import JOB, ROUND, RUNNING, A, B, C
from tests.unit.cli.stand_ins import on_screen


def _entry(key: str, record: Record, created: int = 1) -> StoreEntry:
    return StoreEntry(key, record.encode(), created, created)


def _roles(records: RunRecords) -> list[tuple[str, str, str]]:
    return [(line.name, line.role, line.ranks) for line in r.node_lines(records, {})]


def _shown(records: RunRecords) -> str:
    return on_screen(run_screen.status(make_report("run", "etcd://h", records, {})))


def test_a_job_in_place_shows_how_its_ranks_regroup() -> None:
    one, *more = RUNNING.nodes.values()
    nodes = {each.node: each for each in (replace(one, torch="2.15.0", regroup="rebuild"), *more)}
    in_place = replace(RUNNING, nodes=nodes, job=replace(JOB, in_place=True))
    assert "regroup rebuild (torch 2.15.0)" in _shown(in_place)
    assert "regroup" not in _shown(replace(in_place, job=JOB))


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
    assert "apart   no connection between a and c" in _shown(replace(RUNNING, nodes=nodes))
    assert "apart" not in _shown(RUNNING)


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
    lines = [line.split() for line in _shown(replace(RUNNING, nodes=nodes)).splitlines()]
    (heading,) = (line for line in lines if line[:1] == ["node"])
    assert heading[-1] == "topology"
    assert [line[-1] for line in lines if line[:1] in (["a"], ["b"], ["c"])] == ["z1/r1", "–", "–"]
    assert "topology" not in _shown(RUNNING)


def test_what_the_screen_shows() -> None:
    event = EventRecord(1.0, "round.sealed", 3, "[a]", "3 workers [red]")
    nodes = {"a1": replace(A, name="[b]"), "c1": C}
    records = replace(RUNNING, nodes=nodes, events=(event,), bad=(("nodes/z", "no [i]"),))
    report = make_report("run", "etcd://h", records, {})
    text = on_screen(run_screen.status(report))
    for words in (
        "run run · train.py · running",
        "nodes   1 to 2 (started with 1 to 3)",
        "round   3: 3 workers on 2 nodes (node d lost)",
        "step    40",
        "1 failure of the script (these count), 2 killed workers, 3 lost nodes, 4 changes",
        "silent",
        "round.sealed: 3 workers [red]",
        "unreadable record nodes/z: no [i]",
    ):
        assert words in text
    assert "does not answer" not in text
    assert "the store does not answer" in on_screen(run_screen.status(report, unreachable=True))
    listed = on_screen(run_screen.runs([report])).splitlines()
    assert listed[1].split() == ["run", "running", "3", "3", "40", "train.py"]


def test_a_small_terminal_shows_the_newest_and_says_what_it_leaves_out() -> None:
    events = tuple(EventRecord(float(n), "round.sealed", n, "a", f"event {n}") for n in range(20))
    nodes = {f"n{n}": replace(C, node=f"n{n}", name=f"name{n}") for n in range(30)}
    report = make_report("run", "etcd://h", replace(RUNNING, nodes=nodes, events=events), {})
    for height in (12, 24, 40, 100):
        console = Console(width=80, height=height, color_system=None, highlight=False)
        with console.capture() as captured:
            console.print(run_screen.fitted(report, console))
        text = captured.get()
        assert text.count("\n") < height
        assert "run run" in text
        assert ("event 19" in text) == (height > 40), "the job and its nodes come first"
        assert ("more node" in text) == (height < 40)
