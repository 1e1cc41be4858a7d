"""Runs a command of ours as a person would, and sees to it that nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPTS = Path(__file__).parents[2] / "scripts"
ELASTIC_RUN = (sys.executable, "-m", "elastic_runtime")
_PATIENCE = 60.0


@dataclass
class Run:
    """A command that was started.

    Attributes:
        process: the command itself.
        mark: finds it and all that it started.
        log: what it prints goes here.
    """

    process: subprocess.Popen[bytes]
    mark: str
    log: Path

    @property
    def output(self) -> str:
        """What it and its workers have printed so far, on stdout and stderr."""
        return self.log.read_text(errors="replace")

    def says(self, text: str) -> None:
        """Waits until ``text`` is in the output."""
        processes.wait_for(lambda: text in self.output, _PATIENCE, repr(text), self.story)

    def ends(self) -> int:
        """Waits for the end, and for the end of all that it started; returns the exit code."""
        try:
            code = self.process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            raise processes.Overdue(f"it still runs:\n{self.story()}") from None
        processes.wait_for(
            lambda: not processes.marked(self.mark), 60.0, "no process is left", self._left
        )
        return code

    def succeeds(self) -> str:
        """Waits for the end, which must be a good one; returns the output."""
        assert self.ends() == 0, self.story()
        return self.output

    def story(self) -> str:
        """The end of the output, for messages."""
        return self.output[-4000:]

    def _left(self) -> str:
        return "\n".join(f"{pid} {processes.command(pid)}" for pid in processes.marked(self.mark))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts ``elastic-run`` with these arguments in the directory of the scripts."""
    runs: list[Run] = []

    def launch(*args: str, **environment: str) -> Run:
        mark = f"script-{uuid.uuid4().hex}"
        log = tmp_path / f"{len(runs)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*ELASTIC_RUN, *args],
                cwd=SCRIPTS,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "RES_OPTIONS": "timeout:1 attempts:1",
                    **environment,
                    processes.MARKER: mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        runs.append(Run(process, mark, log))
        return runs[-1]

    yield launch
    for run in runs:
        processes.end(run.mark)
        run.process.wait()
