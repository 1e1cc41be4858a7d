"""What a person sees of a test run while it goes on, and which process runs what."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.lanes import TESTS, further_cases, next_piece, processor_time

if TYPE_CHECKING:
    from pathlib import Path

_A_RUN = """
import pytest

@pytest.fixture
def broken():
    raise KeyError("no such thing")

def test_holds(): pass
def test_fails(): assert False, "first line\\nsecond line"
def test_cannot_begin(broken): pass
def test_holds_as_well(): pass
"""


def test_a_failed_test_is_named_when_it_fails(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(_A_RUN)
    options = ("-p", "tests.lanes", "-p", "no:cacheprovider", "-n", "0", "--rootdir", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, folder],
        cwd=TESTS.parent,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    while_it_runs = done.stdout.split("= ERRORS =")[0].splitlines()
    named = [line for line in while_it_runs if line.startswith("tests/unit/test_some.py::")]
    assert named == [
        "tests/unit/test_some.py::test_fails failed: AssertionError: first line",
        "tests/unit/test_some.py::test_cannot_begin failed in its setup: KeyError: 'no such thing'",
    ]


def test_half_of_the_processes_rounded_up_run_jobs_of_several_nodes() -> None:
    heavy, light = "tests/chaos/test_x.py::test_x", "tests/unit/test_y.py"
    assert next_piece([heavy, light], 1, 4) == heavy
    assert next_piece([heavy, light], 2, 4) == light
    assert next_piece([heavy, light], 1, 3) == heavy
    assert next_piece([heavy, light], 2, 3) == light
    assert next_piece([heavy, heavy], 2, 4) == heavy, "nobody waits while there is work"
    assert next_piece([light, heavy], 0, 4) == light, "in order else"


class Report:
    """What a part of a test has used, as far as the summary looks at it."""

    def __init__(self, nodeid: str, used: str) -> None:
        self.nodeid, self.user_properties = nodeid, [("other", 7), ("processor_s", used)]


def test_what_the_parts_of_tests_have_used_is_added_up() -> None:
    parts = [("t/a/x.py::one", "1.5"), ("t/a/x.py::one", "2"), ("t/a/y.py::two[k::v]", "4")]
    tests, folders = processor_time([Report(*part) for part in parts])  # type: ignore[misc]
    assert tests == {"t/a/x.py::one": 3.5, "t/a/y.py::two[k::v]": 4.0}
    assert folders == {"t/a": 7.5}


def test_each_part_of_a_test_notes_what_it_has_used(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text("def test_holds(): pass\n")
    seen = "def pytest_runtest_logreport(report): print(report.when, report.user_properties)\n"
    (folder / "conftest.py").write_text(seen)
    options = ("-s", "-p", "tests.lanes", "-p", "no:cacheprovider", "-n", "0")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, folder],
        cwd=TESTS.parent,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    for part in ("setup", "call", "teardown"):
        assert f"{part} [('processor_s', '" in done.stdout, done.stdout


class Item:
    """A test, as far as the choice of a lane looks at it."""

    def __init__(self, nodeid: str, marker: str = "") -> None:
        self.nodeid, self._marker = nodeid, marker

    def get_closest_marker(self, name: str) -> object:
        return name if name == self._marker else None


def test_of_some_tests_the_quick_lane_runs_one_case() -> None:
    a1, a2 = Item("f.py::a[1]", "first_case"), Item("f.py::a[2]", "first_case")
    b1, b2 = Item("f.py::b[1]"), Item("f.py::b[2]", "slow")
    assert further_cases([a1, b1, a2, b2]) == [a2]  # type: ignore[list-item]
