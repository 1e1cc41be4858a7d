"""The processor seconds of the tests, in a table that is tracked: what fits into a share is decided
by it, and not by a clock."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.lanes.pieces import TOGETHER, top_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.lanes.passed import Passed

TABLE = Path(__file__).with_name("seconds.txt")
# A file that the table does not have yet.
NEW_S = 40.0
# What has, by the table, no test beside the quick lane: one may have come since.
LEAST_S = 1.0
# Here the parts of the table are folders: their tests are many, and short.
_BY_FOLDER = ("model", "unit")
_HEAD = """\
# Seconds of processor time: of the tests that the quick lane runs, and of the others.
# scripts/test --all writes this file, but for the last rows, which are no tests: .ci/run runs them.
"""


class Seconds(NamedTuple):
    """What the tests of one row need."""

    quick: float
    rest: float


def row_of(nodeid: str) -> str:
    """The row of the table that a test belongs to."""
    file = nodeid.partition("::")[0]
    return str(Path(file).parent) if top_folder(nodeid) in _BY_FOLDER else file


def piece_of(row: str) -> str:
    """The piece that a row, or a test, belongs to: what is run together, or not at all."""
    if not row.startswith("tests/"):
        return row
    together = TOGETHER.get(top_folder(row))
    return f"tests/{together}" if together else row_of(row) if ".py" in row else row


def read(text: str) -> dict[str, Seconds]:
    """The rows of a table."""
    rows = (line.split(None, 2) for line in text.splitlines() if not line.startswith("#"))
    return {name: Seconds(float(quick), float(rest)) for quick, rest, name in rows}


def rest_of(table: Mapping[str, Seconds], files: Iterable[str]) -> dict[str, float]:
    """The seconds of each piece beside the quick lane.

    Args:
        table: as it is tracked.
        files: all files of tests that there are. One that is new counts as of ``NEW_S``, and a
            folder of short tests as of ``LEAST_S``; a row whose tests are gone counts no more.
    """
    rows = {row_of(file) for file in files}
    rest: defaultdict[str, float] = defaultdict(float)
    # In order, as sums of the same numbers in another one may differ.
    for row in sorted(rows | {name for name in table if not name.startswith("tests/")}):
        if row in table:
            rest[piece_of(row)] += table[row].rest
        else:
            rest[piece_of(row)] += 0 if top_folder(row) in _BY_FOLDER else NEW_S
    return {piece: max(seconds, LEAST_S) for piece, seconds in rest.items()}


def by_row(tests: Iterable[Passed], others: Mapping[str, Seconds]) -> dict[str, Seconds]:
    """The rows of a new table: of tests, and those of the old one that are no tests."""
    rows: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for test in tests:
        rows[row_of(test.test)][0 if test.quick else 1] += test.seconds
    kept = {name: both for name, both in others.items() if not name.startswith("tests/")}
    return {name: Seconds(*both) for name, both in sorted(rows.items())} | kept


def written(rows: Mapping[str, Seconds]) -> str:
    """A table as text."""
    lines = (f"{quick:8.1f} {rest:8.1f}  {name}\n" for name, (quick, rest) in rows.items())
    return _HEAD + "".join(lines)
