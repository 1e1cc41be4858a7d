"""The error file of the launcher: as torchrun leaves it, and where torchrun leaves none."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import zygote

if TYPE_CHECKING:
    from pathlib import Path

OURS = (sys.executable, "-m", "elastic_runtime", "--cold", "--max-restarts", "0")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
RAISES = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("no such thing")

main()
"""


def error_of(launcher: tuple[str, ...], script: str, here: Path) -> dict[str, Any]:
    """What a launcher has left when the script had failed."""
    (here / "train.py").write_text(script)
    path = here / "error.json"
    path.write_text("an older one")
    ended = zygote.run(
        [*launcher, "train.py"],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)},
        capture_output=True,
        text=True,
        cwd=here,
        timeout=100,
    )
    assert ended.returncode != 0, ended.stderr
    assert [file.name for file in here.glob("error.json*")] == ["error.json"]
    message: dict[str, Any] = json.loads(path.read_text())["message"]
    return message


def test_the_error_of_a_worker_as_torchrun_leaves_it(tmp_path: Path) -> None:
    theirs = error_of(TORCHRUN, RAISES, tmp_path)
    ours = error_of(OURS, RAISES, tmp_path)
    assert ours["message"] == theirs["message"] == "ValueError: no such thing"
    assert ours["errorCode"] == theirs["errorCode"] == 1
    assert "in main" in ours["extraInfo"]["py_callstack"]
    assert ours["extraInfo"].keys() == theirs["extraInfo"].keys()
    assert int(ours["extraInfo"]["timestamp"]) >= int(theirs["extraInfo"]["timestamp"])


@pytest.mark.parametrize(
    ("options", "script", "told", "code"),
    [
        ((), "raise SystemExit(7)", "TrainingFailed: ", 7),
        (("--local-nodes", "2"), "import os; os.kill(os.getpid(), 11)", "TrainingFailed: ", -11),
        (("--min", "2", "--max", "1"), "", "UsageError: ", None),
        (("--min", "2", "--join-timeout", "0.1"), "", "NotEnoughNodes: ", None),
    ],
)
def test_other_errors(
    tmp_path: Path, options: tuple[str, ...], script: str, told: str, code: int | None
) -> None:
    found = error_of((*OURS, *options), script, tmp_path)
    assert found["message"].startswith(told)
    assert found.get("errorCode") == code
