"""The list of tests that fail by chance (``tests/FLAKY.md``), and when it is too long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tests.lanes.changes import ROOT

PAGE = ROOT / "tests" / "FLAKY.md"
MOST = 5
LONGEST = timedelta(weeks=2)


class Row(NamedTuple):
    """A test that failed once and passed at once after that."""

    test: str
    seen: datetime  # for the first time
    known: str


def read(text: str) -> list[Row]:
    """The rows of the page's table.

    Raises:
        ValueError: a row is no test, date and explanation.
    """
    found = []
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith(("| test |", "|---")):
            test, date, known = (cell.strip() for cell in line.strip("| ").split("|", 2))
            seen = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)
            found.append(Row(test.strip("`"), seen, known))
    return found


def overdue(rows: list[Row], commit_time: int) -> list[str]:
    """What is wrong with the list at a commit that was made at this time: nothing, mostly."""
    commit = datetime.fromtimestamp(commit_time, UTC)
    troubles = [
        f"{row.test} has been here since {row.seen:%Y-%m-%d}, for over two weeks: mend it"
        for row in rows
        if commit - row.seen > LONGEST
    ]
    if len(rows) > MOST:
        troubles.append(f"{len(rows)} tests fail by chance; no more than {MOST} are bearable")
    return troubles
