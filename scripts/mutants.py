#!/usr/bin/env python3
"""Counts how many small changes of the product the tests notice.

    scripts/mutants.py                              40 changes, with the tests that are here
    scripts/mutants.py --tests main --tests HEAD    the same changes with the tests of two commits
    scripts/mutants.py --draw                       only prints the changes

Each mutant is the product with one change, of an operator, a constant or a statement. The changes
are drawn with a seed and spread evenly over all rooms, the folders of the package. The product is
always the one that is here, in copies: nothing changes in this folder. A mutant is tried with the
tests that reach the changed line in the process of pytest, those of its room first, the fastest of
them first, up to the first that fails. What fails without the change, too, finds nothing. A line
that no test reaches is told, and counts as not found.

Which test reaches which line is found by one run of all tests of ``tests/unit`` and ``tests/model``
(or of the folders that are named) that are not marked as slow. That takes a while; the result is
kept in the folder ``--map``, until the product or the tests change. It needs ``coverage``.

The status is 1 where the tests of the last commit find fewer mutants than those of the first.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.mutants_parts.changes import Mutant, draw  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from coverage import CoverageData

PLUGIN = ROOT / "scripts" / "mutants_parts" / "mutants_plugin.py"
PRODUCT = "elastic_runtime"
FOLDERS = ("tests/unit", "tests/model")
# Generated code, texts, and numbers that are settings.
LEFT_OUT = ("_pb2.py", "/__init__.py", f"{PRODUCT}/defaults.py", f"{PRODUCT}/limits.py")
# So many tests of the mutant's room are tried on it, and so many others.
MOST_TESTS = 200
# Seconds that one test may take, and a whole run, and how much longer than in the run of all tests.
TEST_LIMIT, RUN_LIMIT, SLOWER = 60.0, 600.0, 5.0

# ------------------------------------------------------------------ which tests reach it


@dataclass(frozen=True)
class Map:
    """What the run of all tests has shown.

    Attributes:
        lines: coverage's data; its contexts are the tests.
        seconds: how long each test took.
        failed: those that failed, which cannot find anything.
    """

    lines: CoverageData
    seconds: Mapping[str, float]
    failed: Collection[str]

    def tests(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """The tests to try: those of its room, then others, the fastest of each first."""
        [path] = [f for f in self.lines.measured_files() if f.endswith(f"/{mutant.file}")] or [""]
        tests = reaching(mutant, self.lines.contexts_by_lineno(path)) - {*self.failed}
        fastest = sorted(tests & self.seconds.keys(), key=lambda test: (self.seconds[test], test))
        room = Path("tests/unit", Path(mutant.file).relative_to(PRODUCT).parent)
        own = [test for test in fastest if Path(test.partition("::")[0]).parent == room]
        others = [test for test in fastest if test not in own]
        return own[:MOST_TESTS], others[:MOST_TESTS]


def reaching(mutant: Mutant, contexts: Mapping[int, Collection[str]]) -> set[str]:
    """The tests that reach a mutant; where an import does so, those that reach its module.

    Args:
        mutant: the one.
        contexts: the tests that reach each line of its file; "" is what no test has done.
    """
    found = {test for line in mutant.lines for test in contexts.get(line, ())}
    found = found or {*contexts.get(mutant.statement, ())}
    if mutant.at_import or "" in found:
        found = {test for tests in contexts.values() for test in tests}
    return found - {""}


def read_map(tree: Path, folders: Sequence[str], kept: Path) -> Map:
    """The map of a tree, made by a run of its tests if it has not been kept.

    Args:
        tree: where the tests and the product are.
        folders: of the tests that run.
        kept: the folder where maps are kept.

    Raises:
        RuntimeError: the run has come to no end.
    """
    import coverage  # only this needs it

    digest = hashlib.sha256(" ".join(folders).encode())
    for path in sorted(p for part in ("tests", PRODUCT) for p in (tree / part).rglob("*.py")):
        digest.update(f"{path.relative_to(tree)}\n".encode() + path.read_bytes())
    lines = kept.resolve() / f"{digest.hexdigest()[:12]}.coverage"
    notes = lines.with_suffix(".json")
    if not notes.exists():
        kept.mkdir(parents=True, exist_ok=True)
        lines.unlink(missing_ok=True)
        print(f"The tests run once, to see which lines they reach: {lines}", flush=True)
        begin = ["coverage", "run", f"--data-file={lines}", f"--source={PRODUCT}", "-m"]
        if _pytest(tree, [*folders, "-m", "not slow", f"--notes={notes}"], begin=begin) not in (
            0,
            1,
        ):
            notes.unlink(missing_ok=True)
            raise RuntimeError("the run of all tests has come to no end")
    data = coverage.CoverageData(str(lines))
    data.read()
    noted = json.loads(notes.read_text())
    return Map(data, noted["seconds"], noted["failed"])


# ------------------------------------------------------------------ what they find


def make_tree(tree: Path, commit: str) -> None:
    """Copies the project, without what git ignores.

    Args:
        tree: an empty folder.
        commit: from which all but the product comes; "" is none, but the files that are here.
    """
    if commit:
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(tree)], check=True, input=archive.stdout)
        shutil.rmtree(tree / PRODUCT)
    listed = ["git", "ls-files", "-z", "-co", "--exclude-standard", PRODUCT if commit else "."]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def found_by(mutant: Mutant, tree: Path, tests: Sequence[str], seconds: Mapping[str, float]) -> str:
    """The test that finds a mutant, or what else did; "" if nothing.

    Args:
        mutant: the one.
        tree: where it is tried.
        tests: to try, in order.
        seconds: how long each takes.
    """
    path = tree / mutant.file
    source = path.read_bytes()
    while tests:
        path.write_bytes(mutant.changed(source))
        try:
            found = first_failure(tree, tests, seconds)
        finally:
            path.write_bytes(source)
        if not found:
            return ""
        end = tests.index(found) + 1 if found in tests else len(tests)
        if not first_failure(tree, tests[:end], seconds):
            return found
        tests = tests[end:]
    return ""


def first_failure(tree: Path, tests: Sequence[str], seconds: Mapping[str, float]) -> str:
    """Runs tests up to the first that fails, and names it, or what else went wrong; "" if nothing.

    Args:
        tree: where they are.
        tests: which, in order.
        seconds: how long each takes.
    """
    notes, chosen = (tree.with_suffix(suffix) for suffix in (".notes", ".chosen"))
    notes.unlink(missing_ok=True)
    chosen.write_text(json.dumps(tests))
    limit = max(TEST_LIMIT, SLOWER * max(seconds[test] for test in tests))
    files = sorted({test.partition("::")[0] for test in tests})
    arguments = [*files, "-x", f"--notes={notes}", f"--chosen={chosen}", f"--timeout={limit:.0f}"]
    try:
        status = _pytest(tree, arguments, RUN_LIMIT + SLOWER * sum(seconds[test] for test in tests))
    except subprocess.TimeoutExpired:
        return "a time-out"
    failed = json.loads(notes.read_text())["failed"] if notes.exists() else []
    return failed[0] if failed else f"pytest's status {status}" if status else ""


def _pytest(
    tree: Path, arguments: Sequence[str], limit: float | None = None, begin: Sequence[str] = ()
) -> int:
    """Runs pytest in a tree, with the plugin; without a limit its output is shown."""
    command = [sys.executable, "-m", *begin, "pytest", "-p", PLUGIN.stem, "-n", "0", "-q"]
    # A signal ends one test; the other way of pytest-timeout would end the run.
    more = ["-p", "no:cacheprovider", "--hypothesis-seed=1", "-o", "timeout_method=signal"]
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{PLUGIN.parent}"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the next run need not compile again
    output = None if limit is None else subprocess.DEVNULL
    with subprocess.Popen(
        [*command, *more, *arguments],
        cwd=tree,
        env=environment,
        stdout=output,
        stderr=output,
        start_new_session=True,
    ) as run:
        try:
            return run.wait(limit)
        finally:  # what a broken product has left behind, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


# ------------------------------------------------------------------ all of it


def try_all(drawn: Sequence[Mutant], commit: str, options: argparse.Namespace) -> float:
    """Tries mutants with the tests of a commit ("": those that are here), and prints what becomes
    of each.

    Returns:
        The share that is found.
    """
    told_of: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.processes):
            tree = Path(folder, f"tree-{number}")
            tree.mkdir()
            make_tree(tree, commit)
            trees.put(tree)
        known = read_map(tree, options.folders, options.map)

        def outcome(mutant: Mutant, tests: tuple[list[str], list[str]]) -> str:
            tree = trees.get()
            try:
                for some in tests:
                    if by := found_by(mutant, tree, some, known.seconds):
                        return f"found by {by}"
            finally:
                trees.put(tree)
            return "survived" if any(tests) else "not reached"

        with ThreadPoolExecutor(options.processes) as pool:
            tests = [known.tests(mutant) for mutant in drawn]
            for mutant, told in zip(drawn, pool.map(outcome, drawn, tests), strict=True):
                told_of[told.partition(" by ")[0]] += 1
                print(f"{mutant}\n    {told}", flush=True)
    share = told_of["found"] / len(drawn)
    minutes = (time.monotonic() - began) / 60
    where = f"The tests of {commit}" if commit else "The tests that are here"
    print(f"{where} find {share:.0%} in {minutes:.0f} minutes: {dict(told_of)}\n")
    return share


def main() -> int:
    """Draws, tries, and compares."""
    # Otherwise the copies, and the tests that run in them, would be left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog="More in this file's first lines."
    )
    parser.add_argument("folders", nargs="*", default=FOLDERS, help="of tests; relative")
    parser.add_argument("--tests", action="append", metavar="COMMIT", help="whose tests are tried")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40, help="of mutants")
    parser.add_argument("--within", default=PRODUCT, help="a folder or file to draw from")
    parser.add_argument("--draw", action="store_true", help="only print the mutants")
    parser.add_argument("--map", type=Path, default=ROOT / "build/mutants", help="keeps the maps")
    parser.add_argument("--processes", type=int, default=1, help="so many mutants side by side")
    options = parser.parse_args()
    within = ROOT / options.within
    files = [path.relative_to(ROOT).as_posix() for path in [within, *within.rglob("*.py")]]
    kept = [name for name in files if name.endswith(".py") and not name.endswith(LEFT_OUT)]
    drawn = draw({name: (ROOT / name).read_bytes() for name in kept}, options.count, options.seed)
    if options.draw:
        print(*drawn, sep="\n")
        return 0
    shares = [try_all(drawn, commit, options) for commit in options.tests or [""]]
    return 1 if shares[-1] < shares[0] else 0


if __name__ == "__main__":
    sys.exit(main())
