"""What the gate runs, what a person sees of it, and which failures it excuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import changes, flaky, second_try, seconds
from tests.lanes.passed import Passed, begin, note, read
from tests.lanes.pieces import next_piece
from tests.lanes.second_try import MOST, outcomes, why_not
from tests.lanes.seconds import Seconds
from tests.lanes.share import SLOT_S, choose, deal

DAY = 24 * 3600
NOW = 1_764_000_000  # in November 2025


# ------------------------------------------------------------------ what a change has to pass

_PIECES = st.dictionaries(st.text("abcdef", min_size=1), st.floats(0.1, 300), min_size=1)


@given(_PIECES)
def test_every_piece_is_in_one_share_and_no_share_is_too_large(pieces: dict[str, float]) -> None:
    shares = deal(pieces, 200)
    assert sorted(piece for share in shares for piece in share) == sorted(pieces)
    for share in shares:
        assert len(share) == 1 or sum(pieces[piece] for piece in share) <= 200


@given(_PIECES, st.sets(st.text("abcdef", min_size=1)), st.integers(1, 40))
def test_landings_at_equal_distances_run_everything(
    pieces: dict[str, float], touched: set[str], distance: int
) -> None:
    shares = choose(pieces, [], NOW).shares
    if distance % shares:
        landings = [NOW + number * distance * SLOT_S for number in range(shares)]
        chosen = [choose(pieces, [touched], time).chosen for time in landings]
        assert {piece for share in chosen for piece in share} == pieces.keys()


def test_what_is_touched_gets_at_most_half_and_the_closest_first() -> None:
    pieces = {f"p{number}": 10.0 for number in range(50)}
    close, far = {"p3", "p4"}, {f"p{number}" for number in range(20, 40)}
    share = choose(pieces, [close, far], NOW, budget=100)
    assert len(share.touched) == 5 and close <= {*share.touched, *share.turn}
    assert len(share.chosen) == len({*share.chosen}) == 10
    assert {*share.chosen} | {*share.left_out} == pieces.keys()
    assert choose(pieces, [close, far], NOW + 1, budget=100) == share
    later = choose(pieces, [close, far], NOW + SLOT_S, budget=100)
    assert {*later.touched} & far != {*share.touched} & far, "another part of what does not fit"


def test_what_the_touched_leave_goes_to_the_turn() -> None:
    pieces = {f"p{number}": 10.0 for number in range(50)}
    assert len(choose(pieces, [], NOW, budget=100).turn) == 10


def test_a_piece_larger_than_a_share_runs_when_its_turn_comes() -> None:
    pieces = {"large": 500.0, **{f"p{number}": 10.0 for number in range(20)}}
    shares = choose(pieces, [], NOW, budget=100).shares
    turns = [choose(pieces, [], NOW + n * SLOT_S, budget=100).turn for n in range(shares)]
    assert [turn for turn in turns if "large" in turn] == [("large",)]


def test_what_a_change_touches() -> None:
    itself, imports, exercises = changes.touched(
        [
            "tests/integration/test_ctl.py",
            "tests/slurm_cluster.py",
            "tests/integration/lightning/scripts/any.py",
            "elastic_runtime/cli/hosts/host_plan.py",
        ]
    )
    assert {"tests/integration/test_ctl.py", "tests/integration/lightning/test_fabric.py"} < itself
    assert "tests/integration/slurm/test_allocations.py" in imports
    assert "tests/unit/cli/hosts/test_host_plan.py" in imports
    assert exercises == {"tests/integration/hosts/test_hosts.py"}


def test_fixtures_touch_the_tests_below_them() -> None:
    below = "tests/unit/transformers/"
    files = {file for file in changes.test_files() if file.startswith(below)}
    for path in ("elastic_runtime/transformers/elastic_mixin.py", f"{below}conftest.py"):
        assert files and files <= changes.touched([path])[1]


def test_each_folder_of_jobs_says_what_it_exercises() -> None:
    folders = {str(Path(file).parent) for file in changes.test_files()}
    jobs = {folder for folder in folders if not folder.startswith(("tests/unit", "tests/model"))}
    assert jobs == changes.EXERCISES.keys()
    for path in {path for paths in changes.EXERCISES.values() for path in paths}:
        assert (changes.ROOT / path).exists(), path


# ------------------------------------------------------------------ the table


def test_the_table_is_what_was_written() -> None:
    tests = [
        Passed("tests/unit/a/test_x.py::test_one", 1.5, quick=True),
        Passed("tests/unit/a/test_y.py::test_two[a::b]", 2.0, quick=False),
        Passed("tests/chaos/test_z.py::test_three", 4.0, quick=False),
    ]
    rows = seconds.by_row(tests, {"torch 2.15": Seconds(0, 9), "tests/gone.py": Seconds(1, 1)})
    assert rows == {"tests/chaos/test_z.py": (0, 4), "tests/unit/a": (1.5, 2), "torch 2.15": (0, 9)}
    assert seconds.read(seconds.written(rows)) == rows


def test_what_is_new_counts_and_what_is_gone_does_not() -> None:
    table = {
        "tests/chaos/test_gone.py": Seconds(0, 5),
        "tests/cluster/test_c.py": Seconds(0, 3),
        "tests/images/test_i.py": Seconds(0, 4),
        "tests/integration/test_golden.py": Seconds(8, 0),
        "tests/unit/a": Seconds(7, 0.5),
        "torch 2.15": Seconds(0, 9),
    }
    files = [
        *("tests/cluster/test_c.py", "tests/images/test_i.py", "tests/integration/test_golden.py"),
        *("tests/unit/a/test_a.py", "tests/unit/b/test_new.py", "tests/integration/test_new.py"),
    ]
    assert seconds.rest_of(table, files) == {
        "tests/images": 7,  # they share the images
        "tests/integration/test_golden.py": seconds.LEAST_S,  # it may have got another test
        "tests/integration/test_new.py": seconds.NEW_S,
        "tests/unit/a": seconds.LEAST_S,
        "tests/unit/b": seconds.LEAST_S,
        "torch 2.15": 9,
    }
    for test in ("tests/cluster/test_c.py::test_x", "tests/unit/a/test_a.py::test_x[1.py]"):
        assert seconds.piece_of(test) in ("tests/images", "tests/unit/a")


def test_the_tracked_table_can_be_read() -> None:
    assert seconds.rest_of(seconds.read(seconds.TABLE.read_text()), changes.test_files())


# ------------------------------------------------------------------ what had passed before


def test_what_has_passed_is_read_up_to_where_a_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, one, two = tmp_path / "passed", Passed("t::one", 1.0, True), Passed("t::two", 2.0, False)
    assert begin(file, "abc", resume=True) == 0
    note(file, one)
    size = begin(file, "abc", resume=True)
    note(file, two)
    assert read(file, size) == [one], "each process of a run skips the same"
    assert read(file, begin(file, "abc", resume=True)) == [one, two]
    with file.open("a") as lines:
        lines.write('["t::thr')
    assert read(file, begin(file, "abc", resume=True)) == [one, two]
    note(file, two)
    assert read(file, begin(file, "abc", resume=True)) == [one, two, two]
    monkeypatch.setattr("sys.prefix", "/with/another/torch")
    assert read(file, begin(file, "abc", resume=True)) == []
    assert read(file, begin(file, "other", resume=True)) == []
    assert read(file, begin(file, "other", resume=False)) == []


# ------------------------------------------------------------------ tests that fail by chance


def test_the_page_of_flaky_tests_can_be_read() -> None:
    assert flaky.overdue(flaky.read(flaky.PAGE.read_text()), 0) == []
    row = "| `tests/a.py::test_a[x]` | 2025-11-20 | a port that others took \\| or not |\n"
    [read] = flaky.read("| test | first seen | what is known |\n|---|---|---|\n" + row)
    assert (read.test, read.seen.day) == ("tests/a.py::test_a[x]", 20)
    assert flaky.read(row.replace("`", "")) == [read], "a row counts however it is written"
    with pytest.raises(ValueError, match="20 Nov"):
        flaky.read(row.replace("2025-11-20", "20 Nov"))


def test_a_list_that_is_old_or_long_is_told() -> None:
    row = flaky.read("| `a` | 2025-11-20 | nothing |")[0]
    time = int(row.seen.timestamp())
    assert flaky.overdue([row] * 5, time + 14 * DAY) == []
    assert "since 2025-11-20" in flaky.overdue([row], time + 15 * DAY)[0]
    assert "6 tests" in flaky.overdue([row] * 6, time)[0]


def _line(test: str, when: str, outcome: str, text: str = "") -> str:
    return json.dumps({"test": test, "when": when, "outcome": outcome, "text": text})


def test_what_is_not_tried_again() -> None:
    begun = _line("a", "setup", "passed")
    parts = [begun, _line("a", "call", "failed", "why"), _line("a", "teardown", "passed")]
    failed = outcomes("\n".join(parts))
    assert (failed["a"].passed, failed["a"].failed, failed["a"].text) == (False, True, "why")
    assert why_not(failed) == ""
    hung = outcomes(_line("b", "???", "failed"))
    assert "hung" in why_not({**failed, **hung})
    assert "no chance" in why_not({str(n): failed["a"] for n in range(MOST + 1)})
    assert why_not({}), "a run can fail without a test that did"
    assert not outcomes(_line("c", "setup", "skipped"))["c"].passed


def test_a_test_has_passed_that_has_come_to_its_end() -> None:
    begun, ended = _line("a", "setup", "passed"), _line("a", "teardown", "passed")
    assert not outcomes(begun)["a"].passed, "its process may have ended, with a status of 0"
    assert outcomes(f"{begun}\n{ended}")["a"].passed
    assert not outcomes(_line("a", "call", "skipped") + f"\n{ended}")["a"].passed


def test_what_was_kept_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_try, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(second_try, "git", lambda *_: "abc")  # here may be no checkout
    second_try.keep(outcomes(_line("tests/a.py::test_a[x y]", "call", "failed", "first")))
    second_try.keep(outcomes(_line("tests/a.py::test_a[x-y]", "call", "failed", "second \udc80")))
    kept = "".join(file.read_text() for file in (tmp_path / "kept").iterdir())
    assert "first" in kept and "second" in kept


# ------------------------------------------------------------------ in which process


def test_half_of_the_processes_rounded_up_run_jobs_of_several_nodes() -> None:
    heavy, light = "tests/chaos/test_x.py::test_x", "tests/unit/test_y.py"
    assert next_piece([heavy, light], 1, 4) == heavy
    assert next_piece([heavy, light], 2, 4) == light
    assert next_piece([heavy, light], 1, 3) == heavy
    assert next_piece([heavy, light], 2, 3) == light
    assert next_piece([heavy, heavy], 2, 4) == heavy, "nobody waits while there is work"
    assert next_piece([light, heavy], 0, 4) == light, "in order else"
