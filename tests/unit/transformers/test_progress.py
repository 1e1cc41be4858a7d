"""How far a job is: counted at commits, and refused where it is another job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.transformers.progress import Progress
from elastic_runtime.transformers.steps.train_batches import TrainBatches
from tests.unit.transformers.hf_trainers import trainer

if TYPE_CHECKING:
    from pathlib import Path


def progress(folder: Path, batch: int = 8, frozen: str = "") -> Progress:
    """That of a new trainer."""
    made = trainer(folder)
    return Progress(made, TrainBatches(made, batch, 0), frozen)


def test_a_commit_completes_what_the_trainer_had_not_counted(tmp_path: Path) -> None:
    one = progress(tmp_path)
    one.commit()
    assert one._trainer.state.global_step == 1
    one._trainer.state.global_step = 2  # as the Trainer does before its callbacks
    one.commit()
    assert (one._trainer.state.global_step, one.owes) == (2, True)


def test_another_rank_goes_there(tmp_path: Path) -> None:
    one, other = progress(tmp_path), progress(tmp_path)
    one.commit()
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    assert other._trainer.state.global_step == 1


def test_another_job_is_refused(tmp_path: Path) -> None:
    one = progress(tmp_path, frozen="a")
    with pytest.raises(UsageError, match=r"steps of 8 samples.*with 6"):
        progress(tmp_path, 6, "a").load_state_dict(one.state_dict())
    with pytest.raises(UsageError, match="same base model"):
        progress(tmp_path, frozen="b").load_state_dict(one.state_dict())
