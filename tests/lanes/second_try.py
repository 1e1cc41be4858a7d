"""Runs failed tests once more, alone: a change is not refused for one that fails by chance.

    python -m tests.lanes.second_try OUTCOMES [OPTIONS OF scripts/test]

``OUTCOMES`` is what ``scripts/test --outcomes`` has written. Nothing is tried again if a test hung
or a process ended, or if a file could not be collected. Those that pass now are listed at the end
(``flaky: …``), and what they said when they failed is kept below ``.flaky``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tests.lanes import flaky
from tests.lanes.changes import ROOT, git

# More than that are no chance.
MOST = 10
KEPT = ROOT / ".flaky"
PARTS = ("setup", "call", "teardown")


class Outcome(NamedTuple):
    """How a test has ended. One that was skipped has neither passed nor failed."""

    passed: bool  # to its end, and all parts of it
    failed: bool
    ended: bool  # it hung, crashed, or could not be collected
    text: str  # all that it said, if it failed


def outcomes(lines: str) -> dict[str, Outcome]:
    """How each test has ended, of the lines that a run has written of its parts."""
    parts: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for line in map(json.loads, lines.splitlines()):
        parts[line["test"]].append(line)
    return {test: _outcome(its) for test, its in parts.items()}


def _outcome(parts: list[dict[str, str]]) -> Outcome:
    results = {part["outcome"] for part in parts}
    text = "".join(part["text"] for part in parts)
    # pytest-xdist reports no part of a test whose process has ended in the middle of it.
    ended = any(part["when"] not in PARTS for part in parts) or "Failed: Timeout (>" in text
    passed = parts[-1]["when"] == PARTS[-1] and results == {"passed"}
    return Outcome(passed, "failed" in results, ended, text)


def why_not(failed: dict[str, Outcome]) -> str:
    """Why the failed tests are not tried again; empty if they are."""
    hung = [test for test, outcome in failed.items() if outcome.ended]
    if hung:
        what = "hung, ended its process or could not be collected"
        return f"{what}, which a second try does not excuse: {', '.join(hung)}"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed: that is no chance"
    return "" if failed else "no test failed, and the run did: see above"


def keep(failed: dict[str, Outcome]) -> None:
    """Writes what each of these tests said to a file, behind what it said earlier."""
    KEPT.mkdir(exist_ok=True)
    commit = git("log", "-1", "--format=%h of %ci")
    for test, outcome in failed.items():
        name = re.sub(r"[^\w.-]+", "-", test.removeprefix("tests/"))[:200]
        with (KEPT / f"{name}.txt").open("a", errors="backslashreplace") as file:
            file.write(f"{test}, at commit {commit}\n\n{outcome.text}\n\n")


def main(first: Path, options: list[str]) -> int:
    """Tries again. Returns 0 if all have passed."""
    ended = outcomes(first.read_text() if first.exists() else "")
    failed = {test: outcome for test, outcome in ended.items() if outcome.failed}
    if reason := why_not(failed):
        print(f"second try: none, {reason}")
        return 1
    keep(failed)
    print(f"second try: {len(failed)} failed, and run once more, alone", flush=True)
    with tempfile.NamedTemporaryFile() as file:
        command = ["scripts/test", *options, "-n", "0", f"--outcomes={file.name}", *failed]
        done = subprocess.run(command, cwd=ROOT, check=False)
        second = outcomes(Path(file.name).read_text())
    known = {row.test for row in flaky.read(flaky.PAGE.read_text())}
    again = [test for test in failed if test not in second or not second[test].passed]
    for test in failed.keys() - {*again}:
        print(f"flaky: {test}" + ("" if test in known else " (add it to tests/FLAKY.md)"))
    print(f"second try: what they said at first is in {KEPT.name}")
    return 1 if again or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
