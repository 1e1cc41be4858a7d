"""The global batch of a job is known to those who come later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.job_record import record_batch, recorded_batch
from elastic_runtime.lightning.loops.train_data import DataSettings

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_recorded_is_found(tmp_path: Path) -> None:
    directory = str(tmp_path / "runs" / "job")
    assert recorded_batch(directory) == 0
    record_batch(directory, 32)
    record_batch(directory, 32)
    assert recorded_batch(directory) == 32


@pytest.mark.parametrize("text", ["", "{", "[]", '{"micro_batch": "many"}', '{"micro_batch": -1}'])
def test_what_is_half_written_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "lightning.json").write_text(text)
    assert recorded_batch(str(tmp_path)) == 0


def test_a_place_that_cannot_be_written_is_for_the_checkpointer_to_tell() -> None:
    record_batch("/proc/nothing/here", 32)
    assert recorded_batch("/proc/nothing/here") == 0


def test_the_jobs_batch_counts_before_the_loaders() -> None:
    assert DataSettings(None, 0, 2, recorded=10).micro_batch(8) == 10
    assert DataSettings(None, 0, 2).micro_batch(8) == 16
    with pytest.raises(UsageError, match="batches of 10 samples"):
        DataSettings(12, 0, 2, recorded=10)
