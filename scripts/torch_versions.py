#!/usr/bin/env python3
"""Runs small jobs with several versions of torch, kills a worker of each, and makes a table of it.

    scripts/torch_versions.py --environment 2.14=p214/bin/python --environment 2.15=p215/bin/python

Each environment needs torch and what this package depends on; the package itself is the one of
this checkout. With ``--write`` the table is put into docs/torch-versions.md, in which rows of
versions that were not run this time stay. The exit code is 1 if a job did not come out well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.torch_versions_jobs.diary import FAULT_AFTER, PATIENCE, STEPS, STRUCK  # noqa: E402
from tests import processes  # noqa: E402

JOBS = ROOT / "scripts" / "torch_versions_jobs"
PAGE = ROOT / "docs" / "torch-versions.md"
BEGINS = "<!-- the table of scripts/torch_versions.py begins -->"
ENDS = "<!-- the table of scripts/torch_versions.py ends -->"
VICTIM = 1  # its rank
COMMAND = ("-m", "elastic_runtime", "--standalone", "--nproc-per-node=2", "--log-format=json")


@dataclass(frozen=True)
class Kind:
    """A kind of job.

    Attributes:
        title: of its column.
        script: in ``JOBS``.
        saved: where its first whole save is to be seen, as a pattern.
        in_place: the survivor has to keep its process.
    """

    title: str
    script: str
    saved: str = "saved/step-*/MANIFEST.json"
    in_place: bool = False


KINDS = (
    Kind("plain script", "plain.py", saved="saved.pt"),
    Kind("restarted", "restarted.py"),
    Kind("in place", "in_place.py", in_place=True),
    Kind("sharded", "sharded.py"),
)
COLUMNS = ("torch", "Python", *(kind.title for kind in KINDS), "run on")


class Failed(Exception):
    """A job did not come out as it has to; the message says in what."""


@dataclass(frozen=True)
class Row:
    """A version of torch.

    Attributes:
        version: such as ``2.15``.
        cells: all columns of the table.
        well: whether all jobs came out well.
    """

    version: str
    cells: tuple[str, ...]
    well: bool


class Job:
    """One job of two workers, one of which is killed.

    Args:
        python: the interpreter of the environment.
        kind: what runs.
        folder: for all that it leaves.
    """

    def __init__(self, python: str, kind: Kind, folder: Path) -> None:
        self._python = python
        self._kind = kind
        self._folder = folder
        self._mark = f"torch-versions-{uuid.uuid4().hex}"

    def run(self) -> str:
        """Runs it to its end.

        Returns:
            What the table says of it.

        Raises:
            Failed: it does not do what it has to.
        """
        log = self._folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [self._python, *COMMAND, str(JOBS / self._kind.script), str(self._folder)],
                cwd=self._folder,
                env={**_environ(), processes.MARKER: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            victim = processes.wait_for(lambda: self._ready(process), PATIENCE, "the fault")
            (self._folder / STRUCK).touch()
            os.kill(victim, signal.SIGKILL)
            code = process.wait(PATIENCE)
            if code != 0:
                raise Failed(f"exit code {code}")
            return self._judge(victim)
        except (Failed, processes.Overdue, subprocess.TimeoutExpired) as error:
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
            raise Failed(str(error).splitlines()[0]) from None
        finally:
            processes.end(self._mark)
            process.wait()

    def _ready(self, process: subprocess.Popen[bytes]) -> int:
        """The process to be killed, as soon as both are in the middle and something is saved."""
        if process.poll() is not None:
            raise Failed(f"it ended before the fault, with exit code {process.returncode}")
        far = {note["rank"]: note["pid"] for note in self._notes("step") if _is_far(note)}
        saved = any(self._folder.glob(self._kind.saved))
        return far[VICTIM] if len(far) == 2 and saved else 0

    def _notes(self, *what: str) -> list[dict[str, Any]]:
        """What the workers have written down under these names, each in order."""
        return [
            note
            for file in sorted(self._folder.glob("worker-*"))
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n") and (note := json.loads(line))["what"] in what
        ]

    def _judge(self, victim: int) -> str:
        ends = self._notes("ends")
        require(sorted(note["rank"] for note in ends) == [0, 1], "not both ranks ended")
        pids = {note["pid"] for note in ends}
        require(victim not in pids, "the killed worker trained on")
        steps = {note["step"] for note in ends}
        # In place it also trains until the replacement is there.
        right = min(steps) >= STEPS if self._kind.in_place else steps == {STEPS}
        require(right and len(steps) == 1, f"it ended with step {sorted(steps)}, not {STEPS}")
        for note in ends:
            require(note["counted"] == [note["step"]], f"Adam has counted {note['counted']} steps")
            require(note["finite"], "the weights are not finite")
        require(len({note["digest"] for note in ends}) == 1, "the ranks ended with other weights")
        begun = {note["pid"]: note["step"] for note in self._notes("begins")}  # the last of each
        resumed = min(begun[pid] for pid in pids)
        require(resumed > 0, "it began again from step 0")
        return self._kept(pids) if self._kind.in_place else f"yes, from step {resumed}"

    def _kept(self, pids: set[int]) -> str:
        """What is said where the one that was not killed kept its process, and all its steps."""
        first = {note["pid"] for note in self._notes("begins") if note["step"] == 0}
        [survivor] = first & pids or [0]
        require(survivor > 0, "the survivor did not keep its process")
        done = 0
        for note in self._notes("begins", "step"):
            if note["pid"] == survivor:
                again = note["step"] < done + (note["what"] == "step")
                require(not again, f"the survivor went from step {done} to {note['step']}")
                done = note["step"]
        return "yes, the survivor kept its process"


def require(holds: bool, else_: str) -> None:
    """Raises ``Failed`` with the sentence if something does not hold."""
    if not holds:
        raise Failed(else_)


def _is_far(note: dict[str, Any]) -> bool:
    return bool(note["step"] >= FAULT_AFTER)


def _environ() -> dict[str, str]:
    """Ours, without settings of jobs, and with the package of this checkout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTIC_", "PET_"))}
    fixed = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
    # A build for CUDA, too, runs on the processor.
    return {**kept, **fixed, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def run_version(version: str, python: str) -> Row:
    """Runs all kinds of jobs in one environment."""
    try:
        torch, own = _versions(python)
    except (OSError, subprocess.CalledProcessError) as error:
        last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        return absent(version, f"the environment does not work: {last}")
    if not torch.startswith(f"{version}."):
        sys.exit(f"--environment {version}={python}: there is torch {torch}")
    cells, well = [], True
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="torch-versions-") as folder:
            try:
                cells.append(Job(python, kind, Path(folder)).run())
            except Failed as error:
                cells.append(f"no: {error}")
                well = False
        print(f"torch {torch}, {kind.title}: {cells[-1]}", file=sys.stderr, flush=True)
    return Row(version, (torch, own, *cells, datetime.now(tz=UTC).date().isoformat()), well)


def _versions(python: str) -> tuple[str, str]:
    """Those of torch and Python; the package has to be that of this checkout."""
    program = (
        "import elastic_runtime as e, platform, torch; "
        "print(e.__file__, torch.__version__, platform.python_version(), sep='\\n')"
    )
    done = subprocess.run(
        [python, "-c", program], env=_environ(), capture_output=True, text=True, check=True
    )
    where, torch, own = done.stdout.splitlines()
    if not Path(where).is_relative_to(ROOT):
        sys.exit(f"{python} takes elastic_runtime from {where}, not from {ROOT}")
    return torch, own


def absent(version: str, why: str) -> Row:
    """The row of a version that could not be run."""
    return Row(version, (version, "", f"not run: {why}", *[""] * len(KINDS)), False)


def table(rows: dict[str, str]) -> str:
    """The whole table, by version."""
    head = f"{_line(COLUMNS)}\n{_line(('---',) * len(COLUMNS)).replace(' ', '')}\n"
    newest_first = sorted(rows, key=lambda v: tuple(map(int, v.split("."))), reverse=True)
    return head + "".join(f"{rows[version]}\n" for version in newest_first)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def rows_of(page: str) -> dict[str, str]:
    """The rows that a page has already, by version."""
    _, _, rest = page.partition(BEGINS)
    found = re.findall(r"^\| ((\d+\.\d+)\b.*) \|$", rest.partition(ENDS)[0], re.MULTILINE)
    return {version: f"| {row} |" for row, version in found}


def main() -> int:
    """Runs what was asked for, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    pair = {"action": "append", "default": [], "type": lambda text: text.split("=", 1)}
    what = "the Python of an environment with this version, as 2.15=/path/to/python"
    parser.add_argument("--environment", metavar="VERSION=PYTHON", help=what, **pair)
    what = "a version that cannot be installed, and why"
    parser.add_argument("--absent", metavar="VERSION=REASON", help=what, **pair)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    for words in (*args.environment, *args.absent):
        if len(words) != 2 or not re.fullmatch(r"\d+\.\d+", words[0]):
            parser.error(f"{'='.join(words)}: write it as 2.15=…")
    rows = [absent(*words) for words in args.absent]
    rows += [run_version(version, _found(python)) for version, python in args.environment]
    new = {row.version: _line(row.cells) for row in rows}
    if args.write:
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGINS)
        whole = table({**rows_of(page), **new})
        PAGE.write_text(f"{before}{BEGINS}\n{whole}{ENDS}{rest.partition(ENDS)[2]}")
    print(table(new), end="")
    return int(not all(row.well for row in rows))


def _found(python: str) -> str:
    """A path that holds in any directory; not resolved, as an environment is found by its link."""
    return os.path.abspath(python)


if __name__ == "__main__":
    sys.exit(main())
