"""Checkpoints in a directory: what the file system, or a person in it, may do to them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import (
    EXIT_USAGE,
    CheckpointError,
    CheckpointUsageError,
    DamagedCheckpoint,
)
from tests.small_checkpoints import FILE, put, write

if TYPE_CHECKING:
    from pathlib import Path


def test_a_place_that_can_never_be_made_is_refused_at_the_first_look() -> None:
    with pytest.raises(CheckpointUsageError, match="/proc/nowhere"):
        LocalStorage("/proc/nowhere").first_look()


def test_a_file_system_that_takes_nothing_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, which = LocalStorage(tmp_path), CheckpointId(1, 1)
    storage.create(which)
    monkeypatch.setattr(os, "pwritev", lambda *args: 0)
    with pytest.raises(CheckpointError, match="Input/output error"):
        write(storage, which, FILE, b"some bytes")


def test_a_half_done_deletion_is_finished(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    manifest = put(storage, 10)
    half = tmp_path / manifest.id.pruned_name
    (tmp_path / manifest.id.name).rename(half)
    (half / FILE).unlink()
    storage.finish_removals()
    assert storage.names() == []


def test_what_no_manifest_lists_is_not_deleted(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    broken, shared = put(storage, 10), put(storage, 20)
    for manifest in (broken, shared):
        (tmp_path / manifest.id.name).rename(tmp_path / manifest.id.pruned_name)
    (tmp_path / broken.id.pruned_name / MANIFEST).write_bytes(b"broken")
    (tmp_path / shared.id.pruned_name / "notes.txt").write_text("a person's")
    storage.finish_removals()
    assert (tmp_path / broken.id.pruned_name / FILE).exists()
    assert os.listdir(tmp_path / shared.id.pruned_name) == ["notes.txt"]


def test_a_manifest_from_elsewhere_is_damage(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    put(storage, step=8)
    (tmp_path / "step-8.term-1").rename(tmp_path / "step-9.term-1")
    with pytest.raises(DamagedCheckpoint, match=r"manifest of step-8\.term-1"):
        storage.read_manifest(CheckpointId(term=1, step=9))


def test_a_file_is_no_checkpoint_directory(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("precious")
    for path in (file, file / "digits"):
        with pytest.raises(CheckpointError, match=f"{path}: .*choose a directory") as caught:
            LocalStorage(path).first_look()
        assert caught.value.exit_code == EXIT_USAGE
        assert "\n" not in str(caught.value)
    assert file.read_text() == "precious"


def test_a_link_that_leads_nowhere_is_called_so(tmp_path: Path) -> None:
    link = tmp_path / "runs"
    link.symlink_to("/nowhere/runs")
    for path in (link, link / "digits"):
        wrong = rf"in {path}: {link} is a symbolic link to /nowhere/runs, which is not there"
        with pytest.raises(CheckpointError, match=wrong) as caught:
            LocalStorage(path).first_look()
        assert caught.value.exit_code == EXIT_USAGE


def test_a_directory_that_cannot_be_written_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"/sys/elastic: "):
        LocalStorage("/sys/elastic").prepare()


def test_no_directory_means_no_checkpoints(tmp_path: Path) -> None:
    assert LocalStorage(tmp_path / "none").names() == []


def test_a_save_that_cannot_fit_does_not_begin(tmp_path: Path) -> None:
    storage, which = LocalStorage(tmp_path), CheckpointId(1, 1)
    storage.create(which)
    with (
        pytest.raises(CheckpointError, match=f"{tmp_path}.*No space left.*free some space"),
        storage.writer(which, FILE, 1 << 62),
    ):
        pass
    assert storage.sizes(which) == {}


_FILL = """
import sys
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.errors import CheckpointError
storage, which = LocalStorage(sys.argv[1]), CheckpointId(1, 1)
storage.create(which)
try:
    with storage.writer(which, "file", 1 << 20) as out:
        for _ in range(64):
            out.write([memoryview(bytes(1 << 16))])
except CheckpointError as error:
    print(error)
"""


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    # A limit on the size of files fails at the same place as a disk without space.
    done = subprocess.run(
        [sys.executable, "-c", _FILL, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.stdout == (
        f"cannot save to {tmp_path}/step-1.term-1/file: File too large; "
        "raise the limit on file sizes (ulimit -f)\n"
    )


def test_a_checkpoint_that_may_not_be_seen_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "step-9.term-1").symlink_to("step-9.term-1")
    with pytest.raises(CheckpointError, match=r"cannot read .*step-9\.term-1"):
        LocalStorage(tmp_path).has_manifest(CheckpointId(term=1, step=9))
