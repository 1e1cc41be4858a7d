"""The working directory is removed while a job runs, and a worker has to be replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_types import ForkServerExited
from tests.integration.workers.worker_harness import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers.worker_harness import Begin

SCRIPT = """
import os, pathlib, shutil, sys
first = pathlib.Path(sys.argv[1])
if not first.exists():
    first.touch()
    shutil.rmtree(os.getcwd())
    os.kill(os.getpid(), 9)
print("trained")
"""


def run(folder: Path, place: Path, *how: str) -> subprocess.CompletedProcess[str]:
    place.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (place / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "elastic_runtime", *how, str(folder / "first")],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("how", [("{}/train.py",), ("--cold", "{}/train.py"), ("-m", "train")])
def test_a_script_elsewhere_goes_on(tmp_path: Path, how: tuple[str, ...]) -> None:
    done = run(tmp_path, tmp_path / "place", *(word.format(tmp_path) for word in how))
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout


def test_a_script_that_went_with_it_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, tmp_path / "place", "train.py")
    assert done.returncode == 2, done.stderr
    assert "the working directory was removed" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_next_fork_server_starts_there_as_well(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    harness = begin()
    harness.ready()
    place.rmdir()
    os.kill(harness.server(), signal.SIGKILL)
    harness.wait(ForkServerExited)
    harness.workers.start_server()
    assert harness.ready().why_cold == ""
    harness.write("print('there')")
    (ended,) = harness.run(0)
    assert ended.code == 0, harness.story()
