"""What a node on another machine ends with."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from elastic_runtime.errors import EXIT_CRASHED, EXIT_USAGE

if TYPE_CHECKING:
    from pathlib import Path


def _ended(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "elastic_runtime.cli.run.host_node", "command", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_broken_package_is_no_failed_job(tmp_path: Path) -> None:
    """Else the job would be taken for over, on all machines."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart is not there')")
    ended = _ended("train.py", PYTHONPATH=str(tmp_path))
    assert ended.returncode == EXIT_CRASHED
    assert "libcudart is not there" in ended.stderr


def test_a_wrong_flag_is_said() -> None:
    ended = _ended("--nonsense", "train.py")
    assert ended.returncode == EXIT_USAGE
    assert "Traceback" not in ended.stderr
