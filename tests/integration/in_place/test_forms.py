"""One script, started in three ways, in one process or several: the same training."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests import zygote
from tests.integration.in_place.job import ELASTIC_RUN, ENVIRONMENT, SCRIPTS, Job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.users_start


def test_the_same_script_runs_in_every_way(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    ways = {
        "python": (1, (sys.executable,)),
        "torchrun": (2, (*torchrun, "--nproc-per-node=2")),
        "elastic-run": (2, (*ELASTIC_RUN, "--nproc-per-node=2")),
    }
    ends = []
    for name, (size, command) in ways.items():
        folder = tmp_path / name
        folder.mkdir()
        words = ["--folder", str(folder), "--steps", "30"]
        environ = {**os.environ, **ENVIRONMENT}
        script = [*command, str(SCRIPTS / "steps.py"), *words]
        zygote.run(script, env=environ, check=True, timeout=90)
        notes = [note for note in Job.read(folder) if note["what"] == "ended"]
        assert [note["step"] for note in notes] == [30] * size
        ends += [note["digest"] for note in notes]
    assert ends == pytest.approx([ends[0]] * 5, rel=1e-5)
