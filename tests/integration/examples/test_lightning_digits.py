"""The example under Lightning: a worker is killed, and the digits are learned."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.integration.examples.killed_worker import run_and_kill_a_worker

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "elastic_runtime.examples.lightning_digits"


def test_digits_are_learned_although_a_worker_is_killed(tmp_path: Path) -> None:
    said = run_and_kill_a_worker(tmp_path, MODULE, "--step-ms", "5", once="Epoch 1")
    result = re.search(r"test accuracy (0\.\d+) after (\d+) steps", said)
    assert result and float(result[1]) >= 0.97 and int(result[2]) == 460, said
