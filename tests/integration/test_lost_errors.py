"""Which failure is taken for a lost error of gloo, and which is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.lost_errors import SIGN

_ROOT = Path(__file__).parents[2]
_STUCK = f'{{"event": "worker.stuck", "why": "{SIGN}"}}\n'
_OTHER = '{"event": "worker.killed", "reason": "SIGKILL"}\n'
_TESTS = """
import pytest
from tests.integration.lost_errors import tell

@pytest.mark.parametrize("number", [1, 2])
def test_it(number):
    with pytest.raises(AssertionError) as caught:
        assert [1, 2] == [1, 3]
    tell(caught.value, {log!r}, {story!r})
    raise caught.value
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        # The first one in the process is; whoever reads the end of the log would not see why.
        (_STUCK + _OTHER, "1 failed, 1 xfailed"),
        (_STUCK + _OTHER + _STUCK, "2 failed"),
        (_OTHER, "2 failed"),
    ],
)
def test_one_worker_that_waits_is_expected_once(log: str, expected: str, tmp_path: Path) -> None:
    story = log.splitlines()[-1]
    (tmp_path / "test_it.py").write_text(_TESTS.format(log=log, story=story))
    command = ["-q", "-p", "tests.integration.conftest", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert expected in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert story in done.stdout
