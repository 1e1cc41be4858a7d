from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.storage.directory_owner import check_owner
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import CheckpointUsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """The checkpoints of a job that has saved twice."""
    ckpt = Checkpointer(tmp_path, {"model": torch.zeros(1), "best": 1.0})
    for ckpt.steps in (1, 2):
        ckpt.save(sync=True)
    return LocalStorage(tmp_path)


def test_one_entry_of_the_same_name_is_enough(storage: LocalStorage) -> None:
    check_owner(storage, ["best", "optim"])


def test_another_job_is_told_what_is_there(storage: LocalStorage) -> None:
    with pytest.raises(CheckpointUsageError, match=r"step-2\.term-1, has the entries .*has net"):
        check_owner(storage, ["net"])


def test_what_cannot_be_read_says_nothing_of_an_owner(storage: LocalStorage) -> None:
    newest = next(storage.path.glob("step-2*"))
    for file in newest.iterdir():
        if file.name.endswith(".json"):
            file.write_text("{")
    with pytest.raises(CheckpointUsageError, match=r"step-1\.term-1"):
        check_owner(storage, ["net"])


def test_an_empty_directory_is_anybodys(tmp_path: Path) -> None:
    check_owner(LocalStorage(tmp_path), ["net"])
