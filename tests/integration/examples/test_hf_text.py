"""The example under Hugging Face's Trainer: a worker is killed, and the model learns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.integration.examples.killed_worker import run_and_kill_a_worker

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "elastic_runtime.examples.hf_text"


def test_text_is_learned_although_a_worker_is_killed(tmp_path: Path) -> None:
    said = run_and_kill_a_worker(tmp_path, MODULE, "--step-ms", "30", once="'loss'")
    assert "a step has 32 samples over all workers (now 2 workers" in said
    result = re.search(r"loss (\d\.\d+) a letter after (\d+) steps", said)
    assert result and float(result[1]) < 3 and int(result[2]) == 94, said
