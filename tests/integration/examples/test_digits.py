"""The example on real digits: alone, and then under torchrun in another world."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


DIGITS = ["-m", "elastic_runtime.examples.digits", "--every", "60 steps"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(*arguments: str) -> str:
    """What Python prints, which must end well."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    ).stdout


def test_digits_are_learned_across_a_change_of_the_world(tmp_path: Path) -> None:
    directory = str(tmp_path / "runs")
    alone = run(*DIGITS, "--dir", directory, "--epochs", "3")
    assert "epoch 2: step 69, 1 worker," in alone
    together = run(*TORCHRUN, *DIGITS, "--dir", directory)
    assert "from step 69 on: 2 workers, epoch 3" in together
    assert "epoch 19: step 460, 2 workers" in together
    found = re.search(r"test accuracy (0\.\d+)", together)
    assert found and float(found[1]) >= 0.97, together[-2000:]
