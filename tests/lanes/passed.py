"""What a run of all tests has passed on this commit, so that ``--resume`` need not run it again.

The file's first line is the commit and the environment, as another torch can fail where this one
passes; each further line is a test that has passed, as JSON. It is only written, and only believed,
in a tree that is as committed.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, NamedTuple

from tests.lanes.changes import ROOT, git
from tests.lanes.seconds import TABLE

if TYPE_CHECKING:
    from pathlib import Path

FILE = ROOT / ".passed"


class Passed(NamedTuple):
    """A test that has passed."""

    test: str
    seconds: float  # of processor time
    quick: bool  # whether it is in the quick lane


def differences() -> list[str]:
    """What differs from the commit that is checked out: nothing, or what has passed says little.

    The table of seconds does not count: a run of all tests writes it.
    """
    return git("status", "--porcelain", "--", ".", f":!{TABLE.relative_to(ROOT)}").splitlines()


def begin(file: Path, commit: str, *, resume: bool) -> int:
    """Gets the file ready for a run on a commit.

    Returns:
        How many bytes of it an earlier run on the same commit has written: what to skip.
    """
    first = f"{commit} {sys.prefix}\n"
    if resume and file.exists():
        # Without the line in whose middle a run may have been ended.
        text = file.read_text()
        text = text[: text.rfind("\n") + 1]
        if text.startswith(first):
            file.write_text(text)
            return len(text.encode())
    file.write_text(first)
    return 0


def note(file: Path, passed: Passed) -> None:
    """Adds a test that has passed."""
    with file.open("a") as lines:
        lines.write(json.dumps(passed) + "\n")


def read(file: Path, size: int) -> list[Passed]:
    """The tests that had passed when the file had so many bytes."""
    if size == 0:
        return []
    lines = file.read_bytes()[:size].decode().splitlines()[1:]
    return [Passed(*json.loads(line)) for line in lines]
