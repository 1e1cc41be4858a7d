"""The directory of checkpoints: who may write, what exists, what is deleted."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import crc32c
import pytest

from elastic_runtime.checkpoint.manifest import MANIFEST, CheckpointId, FileRecord, Manifest
from elastic_runtime.checkpoint.storage import CheckpointDirectory, ChecksumWriter, check_file
from elastic_runtime.errors import EXIT_USAGE, CheckpointError, DamagedCheckpoint
from tests.ranks import entries_of

HOLDER: dict[str, object] = {"run": "r1", "round": 2, "host": "here"}


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    found = CheckpointDirectory(tmp_path / "runs" / "digits")
    found.prepare()
    return found


def put(directory: CheckpointDirectory, step: int, term: int) -> Path:
    """A whole checkpoint with one file."""
    which = CheckpointId(term=term, step=step)
    path = directory.create(which)
    with ChecksumWriter(path / "rank-0.distcp") as out:
        out.write(f"state of {step}".encode())
    directory.commit(Manifest(step=step, term=term, world=1, files=(out.record(),)))
    return path


def test_a_file_is_checksummed_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ChecksumWriter(path) as out:
        out.write(b"some ")
        out.write(memoryview(b"bytes"))
    assert path.read_bytes() == b"some bytes"
    assert out.record() == FileRecord("file", 10, crc32c.crc32c(b"some bytes"))
    check_file(path, out.record())


def test_every_kind_of_damage_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ChecksumWriter(path) as out:
        out.write(b"some bytes")
    for damaged in (b"some bytez", b"some byte", b"some bytes!", b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpoint, match=str(path)):
            check_file(path, out.record())
    path.unlink()
    with pytest.raises(DamagedCheckpoint, match=str(path)):
        check_file(path, out.record())


def test_terms_only_grow(directory: CheckpointDirectory) -> None:
    assert [directory.take_term(HOLDER) for _ in range(3)] == [1, 2, 3]
    assert entries_of(directory.path) == ["term-3"]
    put(directory, step=5, term=3)
    (directory.path / "term-3").unlink()
    assert directory.take_term(HOLDER) == 4


def test_the_holder_of_an_older_term_is_stopped_and_told_by_whom(
    directory: CheckpointDirectory,
) -> None:
    older = directory.take_term(HOLDER)
    path = directory.create(CheckpointId(term=older, step=9))
    newer = directory.take_term({"run": "r2", "round": 5, "host": "there"})
    with pytest.raises(CheckpointError, match=r"term 2 \(run r2, round 5, there\).*term 1"):
        directory.check_term(older)
    with pytest.raises(CheckpointError, match="term 2"):
        directory.commit(Manifest(step=9, term=older, world=1))
    assert entries_of(path) == []
    directory.check_term(newer)


def test_a_directory_is_a_checkpoint_once_it_has_a_manifest(
    directory: CheckpointDirectory,
) -> None:
    which = CheckpointId(term=1, step=7)
    path = directory.create(which)
    (path / "rank-0.distcp").write_bytes(b"half")
    assert not directory.has_manifest(which)
    assert directory.read_manifest(which) is None
    put(directory, step=8, term=1)
    manifest = directory.read_manifest(CheckpointId(term=1, step=8))
    assert manifest is not None and manifest.step == 8


def test_a_manifest_from_elsewhere_is_damage(directory: CheckpointDirectory) -> None:
    path = put(directory, step=8, term=1)
    moved = directory.path / "step-9.term-1"
    path.rename(moved)
    with pytest.raises(DamagedCheckpoint, match=r"manifest of step-8\.term-1"):
        directory.read_manifest(CheckpointId(term=1, step=9))


def test_the_rest_of_a_failed_save_is_not_written_over(directory: CheckpointDirectory) -> None:
    which = CheckpointId(term=1, step=7)
    directory.create(which)
    with pytest.raises(CheckpointError, match="remove it"):
        directory.create(which)
    directory.discard(which)
    directory.create(which)


def test_pruning_keeps_the_newest_whole_ones(directory: CheckpointDirectory) -> None:
    for step in (10, 20, 30, 40, 50):
        put(directory, step, term=1)
    damaged = directory.path / "step-40.term-1" / "rank-0.distcp"
    damaged.write_bytes(b"short")
    directory.create(CheckpointId(term=1, step=60))
    (directory.path / "step-10.term-1" / "mine.txt").write_text("a person's")
    directory.prune(keep=2)
    assert entries_of(directory.path) == [
        "step-10.term-1",  # somebody's file is in it
        "step-30.term-1",
        "step-40.term-1",  # damaged: does not count and is not deleted
        "step-50.term-1",
        "step-60.term-1",  # never finished
    ]


def test_a_half_done_deletion_is_finished(directory: CheckpointDirectory) -> None:
    path = put(directory, step=10, term=1)
    put(directory, step=20, term=1)
    path.rename(directory.path / "pruned.step-10.term-1")
    (directory.path / "pruned.step-10.term-1" / "rank-0.distcp").unlink()
    directory.prune(keep=5)
    assert entries_of(directory.path) == ["step-20.term-1"]


def test_what_no_manifest_lists_is_not_deleted(
    directory: CheckpointDirectory,
) -> None:
    path = put(directory, step=10, term=1)
    path.rename(directory.path / "pruned.step-10.term-1")
    (directory.path / "pruned.step-10.term-1" / MANIFEST).write_bytes(b"broken")
    directory.prune(keep=5)
    assert (directory.path / "pruned.step-10.term-1" / "rank-0.distcp").exists()


def test_a_file_is_no_checkpoint_directory(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("precious")
    for path in (file, file / "digits"):
        with pytest.raises(CheckpointError, match=f"{path}: .*choose a directory") as caught:
            CheckpointDirectory(path).prepare()
        assert caught.value.exit_code == EXIT_USAGE
        assert "\n" not in str(caught.value)
    assert file.read_text() == "precious"


def test_a_directory_that_cannot_be_written_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"/sys/elastic: "):
        CheckpointDirectory(Path("/sys/elastic")).prepare()


def test_no_directory_means_no_checkpoints(tmp_path: Path) -> None:
    assert CheckpointDirectory(tmp_path / "none").names() == []


_FILL = """
import sys
from pathlib import Path
from elastic_runtime.checkpoint.storage import ChecksumWriter, explained
from elastic_runtime.errors import CheckpointError
try:
    with explained("save to here"), ChecksumWriter(Path(sys.argv[1])) as out:
        for _ in range(64):
            out.write(bytes(1 << 16))
except CheckpointError as error:
    print(error)
"""


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    # A limit on the size of files fails at the same place as a disk without space.
    done = subprocess.run(
        [sys.executable, "-c", _FILL, str(tmp_path / "file")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.stdout == (
        "cannot save to here: File too large; raise the limit on file sizes (ulimit -f)\n"
    )
