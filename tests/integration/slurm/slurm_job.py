"""An elastic job under the tests' Slurm: submitted as people do it, hurt as clusters do it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.slurm_cluster import SlurmCluster

COUNTS = Path(__file__).with_name("counts.py")
PATIENCE = 120.0
_SHOWN = ("--min=1", "--cold", "--last-call=5")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


class SlurmJob:
    """A job of ``counts.py``; it is cancelled at the end of ``with``.

    Args:
        cluster: where it runs.
        folder: for its output, and what it notes.
        *options: of ``elasticctl sbatch``, then of ``elastic-run``; of ``elastic-run`` alone if
            there is a script.
        steps: how many it counts.
        script: a batch script, with ``{elastic_run}`` in it.

    Attributes:
        words: what each node is started with, beside ``options``.
    """

    def __init__(
        self, cluster: SlurmCluster, folder: Path, *options: str, steps: int, script: str = ""
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.words = [*_SHOWN, str(COUNTS), str(folder), str(steps)]
        words = [*options, *self.words]
        self.id = self._submit(script, words) if script else self._sbatch(words)

    def _submit(self, script: str, words: list[str]) -> str:
        elastic_run = shlex.join([sys.executable, "-m", "elastic_runtime", *words])
        path = self.folder / "job.sh"
        path.write_text(script.format(elastic_run=elastic_run))
        return self._call("sbatch", "--parsable", str(path))

    def _sbatch(self, words: list[str]) -> str:
        return self.elasticctl("sbatch", "--submit", *words).removeprefix("submitted job ")

    def elasticctl(self, *words: str) -> str:
        """What it prints."""
        return self._call(sys.executable, "-m", "elastic_runtime.cli.ctl.elasticctl", *words)

    def _call(self, *command: str) -> str:
        return self.cluster.call(*command, cwd=self.folder).strip()

    def __enter__(self) -> SlurmJob:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cluster.cancel(self.id)

    # -- what it says

    def output(self) -> str:
        """All that its batch scripts have written."""
        files = sorted(self.folder.glob(f"slurm-{self.id}*.out"))
        return "".join(f"--- {file.name}\n{file.read_text(errors='replace')}" for file in files)

    def noted(self, name: str) -> list[tuple[int, int]]:
        """Steps and sizes of the world, as rank 0 has noted them."""
        path = self.folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), int(size)) for step, size in (line.split() for line in lines)]

    def wait(self, happened: Callable[[], object], what: str) -> None:
        """Waits for something, and shows the output if it does not happen."""
        wait_for(lambda: bool(happened()), PATIENCE, what, self.output, pause=0.2)

    def wait_for_steps(self, size: int, more: int = 5) -> None:
        """Waits until a world of so many workers has counted some steps from now on."""
        before = len(self.noted("steps"))

        def counted() -> bool:
            return sum(one[1] == size for one in self.noted("steps")[before:]) >= more

        self.wait(counted, f"{more} steps of {size} workers")

    def fields(self, name: str = "") -> dict[str, str]:
        """What Slurm says of it, or of an element of it (``17_3``)."""
        return self.cluster.job(name or self.id)

    def wait_for_end(self, name: str = "") -> dict[str, str]:
        """Waits until Slurm has it as over, and returns what it says of it then."""
        self.wait(lambda: self.fields(name).get("JobState") in OVER, "the end of the job")
        return self.fields(name)

    def wait_for_restart(self) -> None:
        """Waits until Slurm has started it again."""
        self.wait(lambda: self.fields().get("Restarts") == "1", "another start")

    def ends(self, state: str, restarts: int = 0) -> None:
        """Waits for its end, which is to be in this state, after so many further starts."""
        self.wait(lambda: self.fields().get("Restarts") == str(restarts), f"{restarts} restarts")
        ended = self.wait_for_end()
        assert (ended["JobState"], ended["Restarts"]) == (state, str(restarts)), self.output()

    def check_saved(self) -> None:
        """The last step that was made is saved."""
        assert f"step {self.noted('steps')[-1][0]} is saved" in self.output()

    # -- what is done to it

    def enough(self) -> None:
        """The workers are to end well."""
        (self.folder / "enough").touch()

    def signal_agent(self, node: str, number: int) -> None:
        """A signal to the agent of a node; its workers die with it."""
        found = self.cluster.tasks(node)
        assert found, self.output()
        os.kill(found[0], number)

    def signal_batch(self, number: int) -> None:
        """A signal to ``elastic-run`` in the batch script."""
        os.kill(self.cluster.batch(self.id), number)

    def check_steps(self, steps: int) -> None:
        """Each step was made, in order.

        One that was not committed may have been made again, and one that rank 0 did not get to the
        end of may be the one with which it began again, from another rank.
        """
        made = [step for step, _ in self.noted("steps")]
        begun = {step for step, _ in self.noted("begins")} - {0}
        assert sorted({*made, *begun}) == [*range(1, steps + 1)], self.output()
        assert len(made) <= steps + 1, self.output()
