"""Which storage a path or URL stands for, and what is no place at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.checkpoint.storage.remote_storage import RemoteStorage
from elastic_runtime.errors import CheckpointUsageError
from tests.small_checkpoints import put


def test_a_relative_directory_stays_where_it_was_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    storages = [open_storage("runs"), open_storage("file://runs"), LocalStorage("runs")]
    monkeypatch.chdir("elsewhere")
    for step, storage in enumerate(storages, 1):
        storage.prepare()
        assert storage.where == str(tmp_path / "runs")
        put(storage, step=step)
    assert len([n for n in os.listdir(tmp_path / "runs") if n.startswith("step-")]) == 3
    assert not os.listdir(tmp_path / "elsewhere")


def test_a_relative_directory_in_one_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(CheckpointUsageError, match=r"runs is relative.*absolute path"):
        open_storage("runs")
    assert open_storage(tmp_path / "runs").where == str(tmp_path / "runs")


def test_a_place_without_a_name_is_refused() -> None:
    """As of a variable that is not set: it must not become the present directory."""
    with pytest.raises(CheckpointUsageError, match="the checkpoint directory is empty"):
        open_storage("")


def test_a_url_is_an_object_store_and_a_path_never_is() -> None:
    assert isinstance(open_storage("memory://bucket/run"), RemoteStorage)
    assert isinstance(open_storage("local:///bucket/run"), LocalStorage)
    assert isinstance(open_storage(Path("memory:/bucket/run")), LocalStorage)
