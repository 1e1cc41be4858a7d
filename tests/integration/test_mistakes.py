"""Mistakes that only a process shows: the other ones are in ``tests/unit/cli/test_mistakes.py``."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from elastic_runtime import __version__
from elastic_runtime.config import PROTOCOL
from tests.mistakes.row import Mistake
from tests.processes import MARKER, wait_for
from tests.strangers import unused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.users_start

_SCRIPTS = {
    "train.py": "print('trained')",
    "holds.py": "import pathlib, time; pathlib.Path('holds').touch(); time.sleep(600)",
    "noworld.py": "import torch, elastic_runtime as elastic\n"
    "elastic.run(lambda: None, elastic.State(model=torch.nn.Linear(1, 1)))",
}

_JOBS = (
    Mistake(
        "--preload nosuchmod train.py",
        "note: ELASTIC_LEASE_TLL has no effect … did you mean 'ELASTIC_LEASE_TTL'? … "
        "--preload: nosuchmod cannot be imported … No module named 'nosuchmod'",
        code=0,
        lines=4,
        environ={"ELASTIC_LEASE_TLL": "3"},
    ),
    Mistake("--cold --log-dir train.py train.py", "train.py cannot be used (File exists): name a"),
    Mistake(
        "--cold noworld.py", "does not take the one argument … write def <lambda>(world)", lines=3
    ),
    Mistake(
        "--cold --min 2 --max 2 --join-timeout 1 train.py",
        "1 of at least 2 nodes came together within 1 s (--join-timeout)",
        code=3,
        lines=4,
    ),
)


# With the node's name before it, once it has one.
_SLOW_START = re.compile(r"(\S+: )?still importing ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in _SCRIPTS.items():
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def _run(module: str, mistake: Mistake, folder: Path) -> subprocess.CompletedProcess[str]:
    ours = ("PET_", "ELASTIC_")
    plain = {k: v for k, v in os.environ.items() if k == MARKER or not k.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-m", module, *shlex.split(mistake.command)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**plain, **mistake.environ},
        timeout=100,
    )


@pytest.mark.parametrize("mistake", _JOBS, ids=lambda mistake: mistake.command)
def test_elastic_run(folder: Path, mistake: Mistake) -> None:
    told = Mistake(f"--log-format console {mistake.command}", "", environ=mistake.environ)
    done = _run("elastic_runtime", told, folder)
    mistake.check(done.returncode, _without_slow_start(done.stderr))


def _without_slow_start(said: str) -> str:
    """Without the lines that a slow machine has more."""
    return "\n".join(one for one in said.splitlines() if not _SLOW_START.match(one))


def test_elasticctl_at_a_port_where_something_else_listens(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        mistake = Mistake(
            f"status --rdzv-endpoint c10d://{where}",
            f"the c10d store at {where} does not answer … is --rdzv-endpoint right",
            code=4,
        )
        done = _run("elastic_runtime.cli.ctl.elasticctl", mistake, folder)
        mistake.check(done.returncode, done.stderr)


# What a node of another version does differently, before it is one.
_OLDER = """
import sys
import elastic_runtime
elastic_runtime.__version__ = "0.0.9"
from elastic_runtime import config
config.PROTOCOL = "1"
from elastic_runtime.cli.run.elastic_run import main
sys.exit(main())
"""


@contextmanager
def _job_of_an_older_version(folder: Path, *options: str) -> Iterator[None]:
    command = [sys.executable, "-c", _OLDER, "--node-name", "old", *options, "holds.py"]
    said = folder / "older.err"
    with said.open("wb") as file, subprocess.Popen(command, cwd=folder, stderr=file) as older:
        try:
            holds = folder / "holds"
            wait_for(holds.exists, 120, "the job of an older version", said.read_text)
            yield
        finally:
            older.kill()


def test_a_node_of_another_version_is_told_both(folder: Path) -> None:
    where = f"--min 1 --max 2 --cold --rdzv-endpoint c10d://127.0.0.1:{unused()}"
    mistake = Mistake(
        f"--log-format console {where} holds.py",
        f"another version of elastic-runtime: this node runs {__version__} (protocol {PROTOCOL}), "
        "the job under this run id (led by old at 127.0.0.1) 0.0.9 (protocol 1): install the same",
    )
    with _job_of_an_older_version(folder, *where.split()):
        done = _run("elastic_runtime", mistake, folder)
    mistake.check(done.returncode, _without_slow_start(done.stderr))
