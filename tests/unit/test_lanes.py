"""What the gate runs, what a person sees of it, and which failures it excuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import changes, flaky, second_try, seconds
from tests.lanes.passed import Passed, begin, note, read
from tests.lanes.pieces import next_piece
from tests.lanes.second_try import MOST, outcomes, why_not
from tests.lanes.seconds import Seconds
from tests.lanes.share import SLOT_S, choose, deal

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

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
    assert rows == {
        "tests/chaos/test_z.py": (0, 4),
        "tests/unit/a": (1.5, 2),
        "torch 2.15": (0, 9),
    }
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
    second_try.keep(outcomes(_line("tests/a.py::test_a[x y]", "call", "failed", "first")))
    second_try.keep(outcomes(_line("tests/a.py::test_a[x-y]", "call", "failed", "second \udc80")))
    kept = "".join(file.read_text() for file in (tmp_path / "kept").iterdir())
    assert "first" in kept and "second" in kept


# ------------------------------------------------------------------ whole runs

_A_RUN = """
import os, pathlib, pytest, time

AGAIN = pathlib.Path(__file__).with_name("again")

@pytest.fixture
def broken():
    raise KeyError("no such thing")

def test_holds(): pass
def test_fails(): assert "good" in os.environ, "first line\\nsecond line"
def test_cannot_begin(broken): pass
def test_by_chance():
    again = AGAIN.exists()
    AGAIN.write_text("")
    assert again, "once"
@pytest.mark.timeout(1)
def test_hangs(): time.sleep(60)
@pytest.mark.slow("in this test")
def test_slow(): pass
"""
_SCRIPT = 'exec "$PYTHON" -m pytest -p tests.lanes.plugin -p no:cacheprovider "$@"\n'
_INI = """
[pytest]
testpaths = tests
timeout_method = thread
markers = slow(why): in this test
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a module of a small project that has our lanes; returns how it went."""
    shutil.copytree(Path(changes.__file__).parent, tmp_path / "tests" / "lanes")
    (tmp_path / "tests" / "unit").mkdir()
    for name in ("__init__.py", "FLAKY.md"):
        (tmp_path / "tests" / name).write_text("")
    (tmp_path / "tests" / "lanes" / "seconds.txt").write_text("0 9  torch 2.15\n")
    (tmp_path / "tests" / "unit" / "test_some.py").write_text(_A_RUN)
    (tmp_path / "pytest.ini").write_text(_INI)
    (tmp_path / ".gitignore").write_text(".*\n__pycache__\nagain\no\n!/.gitignore\n")
    script = tmp_path / "scripts" / "test"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n" + _SCRIPT)
    script.chmod(0o755)
    environ = {
        **os.environ,
        "PYTEST_ADDOPTS": "",
        "PYTHON": sys.executable,
        **{
            f"GIT_{who}_{what}": "x"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }

    def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={**environ, **variables},
            capture_output=True,
            text=True,
            timeout=100,
        )

    for words in ("init -q", "add .", "commit -q -m all"):
        assert run("git", *words.split()).returncode == 0
    return run


def test_a_failed_test_is_named_when_it_fails(run: Run) -> None:
    done = run("scripts/test", "-n", "0", "-k", "fails or begin or holds")
    while_it_runs = done.stdout.split("= ERRORS =")[0].splitlines()
    named = [line for line in while_it_runs if line.startswith("tests/unit/test_some.py::")]
    assert named == [
        "tests/unit/test_some.py::test_fails failed: AssertionError: first line",
        "tests/unit/test_some.py::test_cannot_begin failed in its setup: KeyError: 'no such thing'",
    ]


def test_who_passes_alone_is_excused_and_kept(run: Run, tmp_path: Path) -> None:
    assert run("scripts/test", "-n", "2", "-k", "chance", "--outcomes=o").returncode == 1
    done = run(sys.executable, "-m", "tests.lanes.second_try", "o")
    assert done.returncode == 0, done.stdout
    assert "flaky: tests/unit/test_some.py::test_by_chance (add it" in done.stdout
    [kept] = (tmp_path / ".flaky").iterdir()
    assert "AssertionError: once" in kept.read_text()


def test_who_fails_again_is_not_excused(run: Run) -> None:
    assert run("scripts/test", "-n", "2", "-k", "fails or chance", "--outcomes=o").returncode == 1
    done = run(sys.executable, "-m", "tests.lanes.second_try", "o")
    assert done.returncode == 1
    assert "flaky: tests/unit/test_some.py::test_by_chance" in done.stdout
    assert "flaky: tests/unit/test_some.py::test_fails" not in done.stdout


@pytest.mark.parametrize("method", ["thread", "signal"])
def test_who_hung_is_not_tried_again(run: Run, method: str) -> None:
    options = ("--timeout-method", method, "--outcomes=o")
    run("scripts/test", "-n", "1", "-k", "hangs", *options)
    done = run(sys.executable, "-m", "tests.lanes.second_try", "o")
    assert done.returncode == 1
    assert "hung" in done.stdout and "test_hangs" in done.stdout


_TO_THE_END = """
import os
def test_holds(): pass
def test_crashes(): os._exit(3)
def test_more(): pass
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_process_that_ends_takes_no_other_test_with_it(
    run: Run, tmp_path: Path, processes: str
) -> None:
    unit = tmp_path / "tests" / "unit"
    (unit / "test_some.py").write_text(_TO_THE_END)
    for name in ("a", "b", "v", "w", "x"):
        (unit / f"test_{name}.py").write_text("def test_holds(): pass\n")
    (unit / "test_y.py").write_text(_TO_THE_END.replace("def test_more(): pass\n", ""))
    done = run("scripts/test", "-n", processes)
    assert "2 failed, 8 passed" in done.stdout, done.stdout


_ENDS_AFTER_ITS_TESTS = """
import os
def pytest_sessionfinish(session):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0": os._exit(3)
"""


def test_a_process_that_ends_after_its_tests_fails_the_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tests" / "conftest.py").write_text(_ENDS_AFTER_ITS_TESTS)
    assert run("scripts/test", "-n", "1", "-k", "chance", "--outcomes=o").returncode == 1
    done = run(sys.executable, "-m", "tests.lanes.second_try", "o")
    assert done.returncode == 1 and "could not be collected" in done.stdout
    done = run("scripts/test", "-n", "1", "-k", "holds")
    assert done.returncode == 1 and "ERROR gw0" in done.stdout


def test_who_fails_by_chance_does_not_excuse_a_file_that_cannot_be_imported(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "tests" / "unit" / "test_broken.py").write_text("import nothing_of_this_name\n")
    assert run("scripts/test", "-n", "2", "-k", "chance", "--outcomes=o").returncode == 1
    done = run(sys.executable, "-m", "tests.lanes.second_try", "o")
    assert done.returncode == 1
    assert "could not be collected" in done.stdout and "unit/test_broken.py" in done.stdout


_EVERYTHING = """
import os, pytest
def test_holds(): pass
def test_fails(): assert "good" in os.environ
@pytest.mark.slow("in this test")
def test_slow(): pass
"""


def test_a_run_of_everything_goes_on_where_it_was(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tests" / "unit" / "test_some.py").write_text(_EVERYTHING)
    assert run("git", "commit", "-q", "-a", "-m", "some").returncode == 0
    everything = ("scripts/test", "--all", "-n", "0")
    done = run(*everything, "-n", "2")
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    table = (tmp_path / "tests" / "lanes" / "seconds.txt").read_text()
    assert "  tests/unit\n" in table and "  torch 2.15\n" in table
    done = run(*everything, "--resume", good="yes")
    assert "1 passed, 2 deselected" in done.stdout, done.stdout
    done = run(*everything, "--resume")
    assert "3 deselected" in done.stdout and done.returncode == 0
    assert "3 passed" in run(*everything, good="yes").stdout
    (tmp_path / "scripts" / "more").write_text("")
    done = run(*everything, "--resume")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "scripts/more; leave out --resume, or commit" in done.stderr
    assert "name both" in run("scripts/test", "--resume").stderr


def test_a_run_of_everything_needs_a_checkout(run: Run, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / ".git")
    done = run("scripts/test", "--all", "-n", "0", GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "git for the commit: fatal: not a git repository" in done.stderr


def test_only_a_whole_run_writes_the_table(run: Run, tmp_path: Path) -> None:
    unit = tmp_path / "tests" / "unit"
    (unit / "test_some.py").write_text(_EVERYTHING)
    everything = ("scripts/test", "--all", "-n", "0")
    table = tmp_path / "tests" / "lanes" / "seconds.txt"
    before = table.read_text()
    for part in ("-m=slow", "-k=holds", "--collect-only", "-x", "--ignore=tests/unit/test_some.py"):
        run(*everything, part)
        assert table.read_text() == before, part
    (unit / "test_broken.py").write_text("import nothing_of_this_name\n")
    run(*everything, "-n", "1")
    assert table.read_text() == before
    (unit / "test_broken.py").unlink()
    run(*everything)
    assert "tests/unit" in table.read_text()


def test_a_run_of_everything_looks_at_the_flaky(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tests" / "unit" / "test_some.py").write_text("def test_holds(): pass\n")
    (tmp_path / "tests" / "FLAKY.md").write_text("| `tests/x` | 2001-01-01 | nothing |\n")
    done = run("scripts/test", "--all", "-n", "0")
    assert done.returncode == 1 and "tests/FLAKY.md: tests/x has been here" in done.stdout
    assert run("scripts/test", "-n", "0").returncode == 0


def test_the_quick_lane_leaves_out_what_is_slow_unless_it_is_asked_for(
    run: Run, tmp_path: Path
) -> None:
    assert "1 passed" in run("scripts/test", "-n", "0", "-k", "holds or slow").stdout
    (tmp_path / "also").write_text("tests/unit\ntorch 2.15\n")
    done = run("scripts/test", "-n", "0", "--also=also", "-k", "holds or slow")
    assert "2 passed" in done.stdout
    assert "1 passed" in run("scripts/test", "-n", "0", "tests/unit", "-k", "slow").stdout


@pytest.mark.parametrize(("limit", "left_out"), [("timeout=601", True), ("600", False)])
def test_what_may_take_long_runs_with_all_only(
    run: Run, tmp_path: Path, limit: str, left_out: bool
) -> None:
    text = (
        f"import pytest\n@pytest.mark.slow('')\n@pytest.mark.timeout({limit})\ndef test_l(): pass\n"
    )
    (tmp_path / "tests" / "unit" / "test_long.py").write_text(text)
    (tmp_path / "also").write_text("tests/unit\n")
    done = run("scripts/test", "-n", "0", "--also=also", "-k", "test_l")
    assert ("1 passed" not in done.stdout) == left_out and "INTERNALERROR" not in done.stdout


# ------------------------------------------------------------------ in which process


def test_half_of_the_processes_rounded_up_run_jobs_of_several_nodes() -> None:
    heavy, light = "tests/chaos/test_x.py::test_x", "tests/unit/test_y.py"
    assert next_piece([heavy, light], 1, 4) == heavy
    assert next_piece([heavy, light], 2, 4) == light
    assert next_piece([heavy, light], 1, 3) == heavy
    assert next_piece([heavy, light], 2, 3) == light
    assert next_piece([heavy, heavy], 2, 4) == heavy, "nobody waits while there is work"
    assert next_piece([light, heavy], 0, 4) == light, "in order else"
