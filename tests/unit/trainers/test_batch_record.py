"""The global batch of a job is known to those who come later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.trainers.batch_record import BatchRecord

if TYPE_CHECKING:
    from pathlib import Path


def record(directory: str) -> BatchRecord:
    """That of a trainer, in this directory."""
    return BatchRecord(directory, "lightning", "micro_batch")


def test_what_was_recorded_is_found(tmp_path: Path) -> None:
    directory = str(tmp_path / "runs" / "job")
    assert record(directory).batch() == 0
    record(directory).write(32)
    record(directory).write(32)
    assert record(directory).batch() == 32
    assert BatchRecord(directory, "transformers", "micro_batch").batch() == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"micro_batch": "many"}', '{"micro_batch": -1}'])
def test_what_is_half_written_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "lightning.json").write_text(text)
    assert record(str(tmp_path)).batch() == 0


def test_a_place_that_cannot_be_written_is_for_the_checkpointer_to_tell() -> None:
    record("/proc/nothing/here").write(32)
    assert record("/proc/nothing/here").batch() == 0


def test_further_numbers_are_kept(tmp_path: Path) -> None:
    record(str(tmp_path)).write(32, finished=7)
    record(str(tmp_path)).write(32)
    assert record(str(tmp_path)).number("finished") == 7
    record(str(tmp_path)).write(32, finished=0)
    assert record(str(tmp_path)).number("finished") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["lightning.json"]
