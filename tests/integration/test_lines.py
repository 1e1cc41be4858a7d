"""What a person reads of a fault, and of a node that leaves: of real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.protocol.records import SWITCH, SwitchRecord
from tests import processes
from tests.processes import Launcher
from tests.strangers import store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


PATIENCE = 60.0
# Trains up to the step that the file says, and saves each 30th.
SAVES = """
import os, time
import torch, torch.distributed as dist
import elastic_runtime as elastic

def said(name):
    try:
        return open(name).read()
    except FileNotFoundError:
        return ""

state = elastic.State(model=torch.nn.Linear(1, 1))
state.checkpoints("saved", every=30)

def train(world):
    while not said("enough"):
        time.sleep(0.05)
        if state.step < int(said("limit")):
            state.commit()
            with open(f"at-{world.rank}", "w") as file:
                file.write(f"{world.round} {state.step} {os.getpid()}")

elastic.run(train, state, in_place=False)
"""
# The only rank of a round does not end a step while the gate is closed.
IN_PLACE = """
import os, time
import torch, torch.distributed as dist
import elastic_runtime as elastic

state = elastic.State(model=torch.nn.Linear(1, 1))

def train(world):
    while True:
        enough = torch.tensor([float(os.path.exists("enough"))])
        dist.all_reduce(enough)  # so that all ranks return after the same step
        if enough:
            return
        while world.size == 1 and os.path.exists("gate"):
            time.sleep(0.01)
        time.sleep(0.02)
        state.commit()
        with open(f"at-{world.rank}", "w") as file:
            file.write(f"{world.round} {state.step} {os.getpid()}")

elastic.run(train, state)
"""


class Job:
    """Two nodes in one terminal, which shows what people see."""

    def __init__(self, folder: Path, script: str, launch: Launcher) -> None:
        self.folder, self.mark = folder, launch.mark
        (folder / "train.py").write_text(script)
        nodes = ("--local-nodes", "2", "--min", "1")
        with (folder / "log").open("wb") as log:
            self.process = launch(
                *("--log-format", "console", *nodes, "--log-file", "events", "train.py"),
                environ={"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def wait(self, happened: Callable[[], Any], what: str) -> Any:
        return processes.wait_for(happened, PATIENCE, what, lambda: self.log)

    def at(self, rank: int) -> tuple[int, int, int]:
        """Round, step and process of a rank."""
        try:
            words = (self.folder / f"at-{rank}").read_text().split()
        except FileNotFoundError:
            return 0, 0, 0
        return (int(words[0]), int(words[1]), int(words[2])) if len(words) == 3 else (0, 0, 0)

    def reaches(self, number: int, step: int, ranks: int) -> None:
        """Waits until so many ranks are at a step in a round."""
        self.wait(
            lambda: all(
                self.at(rank)[0] >= number and self.at(rank)[1] >= step for rank in range(ranks)
            ),
            f"step {step} in round {number}",
        )

    def line(self, pattern: str) -> str:
        """Waits for a line."""
        found = self.wait(lambda: re.search(f"^.*{pattern}.*$", self.log, re.MULTILINE), pattern)
        return str(found[0])

    def says(self, name: str, text: str = "") -> None:
        """Writes a file that the script looks for."""
        draft = self.folder / f"{name}.new"
        draft.write_text(text)
        draft.rename(self.folder / name)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of this name."""
        lines = (self.folder / "events").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def name(self, group_rank: int) -> str:
        """Which node came to have this rank: either may have been first."""
        sealed = self.events("round.sealed")
        return next(str(e["node"]) for e in sealed if e["group_rank"] == group_rank)

    def recovered(self, number: int) -> bool:
        """Whether the first node has told of a recovery by this round."""
        told = [(event["node"], event["round"]) for event in self.events("round.recovered")]
        return (self.name(0), number) in told

    def switch(self) -> int:
        """The round that all are to leave, as the store has it."""
        with store_of(self.events("job.join_command")[0]) as store:
            found = [entry.value for entry in store.read(SWITCH) if entry.key == SWITCH]
        return SwitchRecord.decode(SWITCH, found[0]).round if found else 0

    def node(self, name: str) -> int:
        """The process of a node."""
        pids = processes.marked(self.mark)
        ours = [pid for pid in pids if f"--node-name {name}" in processes.command(pid)]
        return ours[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    with Launcher(tmp_path) as launch:
        yield lambda script: Job(tmp_path, script, launch)


def test_steps_that_are_made_again_are_told_once_and_who_leaves_says_what_it_saved(
    start: Callable[[str], Job], tmp_path: Path
) -> None:
    (tmp_path / "limit").write_text("50")
    job = start(SAVES)
    job.reaches(1, 50, ranks=2)
    job.wait((tmp_path / "saved" / "step-30.term-1" / "MANIFEST.json").exists, "step 30 is saved")
    job.says("limit", "31")
    os.kill(job.at(1)[2], signal.SIGKILL)
    assert job.line("round 2: .* resumed at").endswith("resumed at step 30 (20 steps again)")
    # The next round begins before the step that was reached once, and nothing more is lost by it.
    job.reaches(2, 31, ranks=2)
    leaver = job.name(1)
    os.kill(job.node(leaver), signal.SIGTERM)
    job.line(f"{leaver}: leaving")
    job.says("limit", "100000")
    line = job.line(f"{leaver} left on")
    left = re.search(r"left on request; step (\d+) is saved; other nodes may continue$", line)
    assert left is not None, job.log
    assert job.line("round 3: .* resumed at").endswith(f"resumed at step {left[1]}")
    job.says("enough", "yes")
    assert job.process.wait(PATIENCE) == 0, job.log


def test_a_replacement_that_is_ready_early_has_a_recovery_of_its_own(
    start: Callable[[str], Job], tmp_path: Path
) -> None:
    (tmp_path / "gate").touch()
    job = start(IN_PLACE)
    job.reaches(1, 3, ranks=2)
    os.kill(job.at(1)[2], signal.SIGKILL)
    job.wait(lambda: job.switch() == 2, "the order to leave round 2")
    (tmp_path / "gate").unlink()
    for number in (2, 3):
        job.wait(lambda: job.recovered(number), f"the recovery of round {number}")  # noqa: B023
    job.says("enough")
    assert job.process.wait(PATIENCE) == 0, job.log
