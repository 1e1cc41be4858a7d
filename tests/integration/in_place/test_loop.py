"""The same loop in both forms, through faults: all that it does is as if nothing had happened."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests import zygote
from tests.integration.in_place.job import ENVIRONMENT, SCRIPTS, Job

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.in_place.job import Note

pytestmark = pytest.mark.golden("one loop, in place and by restart")

_NODES = ("--local-nodes", "2", "--min", "1", "--max", "3", "--max-restarts", "20")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one process notes alone."""
    folder = tmp_path_factory.mktemp("alone")
    words = ["--folder", str(folder), "--seconds", "0"]
    zygote.run(
        [sys.executable, str(SCRIPTS / "loop.py"), *words],
        env={**os.environ, **ENVIRONMENT},
        check=True,
        timeout=90,
    )
    return Job.read(folder)


def _further(job: Job, steps: int) -> dict[int, Note]:
    """Waits until the job has made so many more steps; the newest of each rank."""
    goal = job.step + steps
    job.wait(lambda: job.step >= goal, f"step {goal}")
    return job.newest()


@pytest.mark.parametrize("kind", ["in place", "restart"])
def test_a_loop_does_what_it_would_without_faults(
    tmp_path: Path, undisturbed: list[dict[str, Any]], kind: str
) -> None:
    with Job(tmp_path, "loop.py", *_NODES, kind=kind, seconds=0.15) as job:
        job.ranks(2)
        job.kill(_further(job, 3)[1])
        job.kill(_further(job, 4)[0])
        late = job.join()
        job.wait(lambda: len(job.newest()) == 3, "a third rank")
        job.kill(_further(job, 2)[2])
        _further(job, 2)
        job.process.send_signal(signal.SIGTERM)
        job.wait(lambda: job.process.poll() is not None, "the end of the nodes that were asked to")
        late.send_signal(signal.SIGTERM)
        late.wait(timeout=60)
    with Job(tmp_path, "loop.py", *_NODES, kind=kind, seconds=0.02) as job:
        assert job.end() == 0, job.story()
        _compare(undisturbed, Job.read(tmp_path))


def _compare(undisturbed: list[dict[str, Any]], notes: list[dict[str, Any]]) -> None:
    alone = {note["step"]: note for note in undisturbed if note["what"] == "step"}
    made: dict[int, dict[tuple[int, int], list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for note in notes:
        if note["what"] == "step":
            made[note["step"]][note["round"], note["size"]].append(note)
    assert sorted(made) == sorted(alone)
    whole = 0
    for step, rounds in made.items():
        for (_, size), ranks in rounds.items():
            if len({note["rank"] for note in ranks}) < size:
                continue  # a rank was killed before it has noted it
            whole += 1
            samples = sorted(n for note in ranks for n in note["samples"])
            assert samples == sorted(alone[step]["samples"]), step
            assert sum(note["loss"] for note in ranks) == pytest.approx(alone[step]["loss"])
            assert {note["lr"] for note in ranks} == {alone[step]["lr"]}
    assert whole >= len(alone) - 10
    rows = {note["step"] for note in notes if note["what"] == "row"}
    assert rows == set(alone), "no line of the log is missing"
    [wanted] = [note for note in undisturbed if note["what"] == "ended"]
    for ended in (note for note in notes if note["what"] == "ended"):
        for name in ("step", "place"):
            assert ended[name] == wanted[name]
        assert [step for step, _ in ended["told"]] == [step for step, _ in wanted["told"]]
        for name in ("best", "sums"):
            assert ended[name] == pytest.approx(wanted[name], rel=1e-9)
        assert [loss for _, loss in ended["told"]] == pytest.approx(
            [loss for _, loss in wanted["told"]], rel=1e-9
        )
