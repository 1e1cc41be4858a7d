"""What a terminal shows of a run, and what a small one leaves out."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console, RenderableType

from elastic_runtime.cli.ctl import run_screen
from elastic_runtime.cli.ctl.run_report import make_report
from elastic_runtime.protocol.records import (
    EventRecord,
)
from tests.unit.cli.ctl.runs import RUNNING, A, B, C


def _text(shown: RenderableType) -> str:
    console = Console(width=200, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_what_the_screen_shows() -> None:
    event = EventRecord(1.0, "round.sealed", 3, "[a]", "3 workers [red]")
    nodes = {"a1": replace(A, name="[b]"), "c1": C}
    records = replace(RUNNING, nodes=nodes, events=(event,), bad=(("nodes/z", "no [i]"),))
    report = make_report("run", "etcd://h", records, {})
    text = _text(run_screen.status(report))
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
    assert "the store does not answer" in _text(run_screen.status(report, unreachable=True))
    listed = _text(run_screen.runs([report])).splitlines()
    assert listed[1].split() == ["run", "running", "3", "3", "40", "train.py"]


def test_who_does_not_reach_whom_is_shown() -> None:
    nodes = {"a1": A, "b1": B, "c1": replace(C, unreachable=("a1", "gone"))}
    report = make_report("run", "etcd://h", replace(RUNNING, nodes=nodes), {})
    assert "apart   no connection between a and c" in _text(run_screen.status(report))


def test_it_is_shown_how_ranks_regroup() -> None:
    report = make_report("run", "etcd://h", RUNNING, {})
    assert "regroup" not in _text(run_screen.status(report))
    shown = _text(run_screen.status(replace(report, regroup="rebuild (torch 2.13.0)")))
    assert "regroup rebuild (torch 2.13.0)" in shown


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


def test_where_nodes_are_is_shown_if_one_of_them_says_it() -> None:
    nodes = {"a1": replace(A, topology="z1/r1"), "b1": B}
    report = make_report("run", "etcd://h", replace(RUNNING, nodes=nodes), {})
    lines = [line.split() for line in _text(run_screen.status(report)).splitlines()]
    (heading,) = (line for line in lines if line[:1] == ["node"])
    assert heading[-1] == "topology"
    assert [line[-1] for line in lines if line[:1] in (["a"], ["b"])] == ["z1/r1", "–"]
    report = make_report("run", "etcd://h", RUNNING, {})
    assert "topology" not in _text(run_screen.status(report))
