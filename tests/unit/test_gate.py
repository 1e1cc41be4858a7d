"""Whole runs of a small project that has our lanes: what is seen, skipped, kept and excused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import zygote
from tests.lanes import changes

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.slow("some twenty runs of pytest")

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
    shutil.copy(zygote.__file__, tmp_path / "tests")
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
    # Where xdist meets the end while it talks to the process, it ends with 3: no second try then.
    first = run("scripts/test", "-n", "1", "-k", "chance", "--outcomes=o")
    assert first.returncode in (1, 3), first.stdout
    if first.returncode == 1:
        done = run(sys.executable, "-m", "tests.lanes.second_try", "o")
        assert done.returncode == 1 and "could not be collected" in done.stdout
    done = run("scripts/test", "-n", "1", "-k", "holds")
    assert done.returncode == 3 or (done.returncode == 1 and "ERROR gw0" in done.stdout)


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
