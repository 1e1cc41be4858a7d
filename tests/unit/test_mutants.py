"""The mutants: which changes are drawn, which tests reach them, and that a copy is changed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from scripts.mutants import found_by, reaching
from scripts.mutants_parts.changes import Mutant, draw, mutants

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = b'''
"""A module, +1."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    SIZE = 1


@dataclass(frozen=True)
class Place:
    size: int


def fits(place, free: 'range(1)' = 3, *, text="\xc3\xbc"):
    for part in place:
        if not part:
            continue
        part.size += free
        part.tell(f"{part.size + 1}")
        _LOG.info("so", 1)
    return place.size < free and text
'''


def test_each_kind_of_change_and_no_other() -> None:
    assert {(mutant.old, mutant.new) for mutant in mutants("a.py", SOURCE)} == {
        ("free: 'range(1)' = 3", "free: 'range(1)'"),
        ("3", "4"),
        ("3", "2"),
        ('text="ü"', "text"),
        ("not part", "part"),
        ("not part", "True"),
        ("not part", "False"),
        ("continue", "break"),
        ("part.size += free", "part.size -= free"),
        ('part.tell(f"{part.size + 1}")', "pass"),
        ("return place.size < free and text", "return None"),
        ("place.size < free and text", "(place.size < free or text)"),
        ("place.size < free", "(place.size <= free)"),
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a.b = c", "pass"),
        ("a[b] = c", "pass"),
        ("break", "continue"),
        ("x = True", "False"),
        ("x = a - b", "(a + b)"),
        ("x = a in b", "(a not in b)"),
        ("x = a is not b", "(a is b)"),
    ],
)
def test_other_kinds(old: str, new: str) -> None:
    assert [mutant.new for mutant in mutants("a.py", f"while a:\n    {old}\n".encode())] == [new]


def test_the_same_seed_draws_the_same_from_all_rooms() -> None:
    files = {f"{room}/{name}.py": SOURCE for room in "abcd" for name in "xy"}
    drawn = draw(files, 8, seed=1)
    assert all(ast.parse(mutant.changed(SOURCE)) for mutant in drawn)
    assert drawn == draw(dict(reversed(files.items())), 8, seed=1) != draw(files, 8, seed=2)
    assert [mutant.file[0] for mutant in drawn] == [*"aabbccdd"]


def mutant(line: int, at_import: bool = False) -> Mutant:
    """One of two lines, in a statement that begins two lines before."""
    return Mutant("a.py", range(line, line + 2), line - 2, slice(0, 1), "1", "2", at_import)


def test_which_tests_reach_a_change() -> None:
    contexts = {1: ["", "t1"], 3: ["t1", "t2"], 5: ["t3"], 9: [""]}
    assert reaching(mutant(4), contexts) == {"t3"}
    assert reaching(mutant(13), contexts) == set()
    assert reaching(mutant(7), contexts) == {"t3"}  # the line of its statement
    run_by_an_import = (mutant(8), mutant(4, True))
    assert [reaching(it, contexts) for it in run_by_an_import] == [{"t1", "t2", "t3"}] * 2


def test_a_test_that_fails_anyway_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.mutants.first_failure", lambda tree, tests, seconds: fails(tests))
    path = tmp_path / "a.py"

    def fails(tests: list[str]) -> str:
        broken = path.read_bytes() == b"2"
        return next((test for test in tests if test == "bad" or (broken and test == "good")), "")

    path.write_bytes(b"1")
    assert found_by(mutant(1), tmp_path, ["bad", "good", "more"], {}) == "good"
    assert found_by(mutant(1), tmp_path, ["bad", "more"], {}) == ""
    assert path.read_bytes() == b"1"
