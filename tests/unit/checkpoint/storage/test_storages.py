"""What every storage of checkpoints does, and what is special about a directory."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId, Manifest
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.checkpoint.storage.remote_storage import RemoteStorage
from elastic_runtime.errors import (
    EXIT_USAGE,
    CheckpointError,
    CheckpointUsageError,
    DamagedCheckpoint,
    Superseded,
)
from tests.ranks import run_ranks
from tests.small_checkpoints import FILE, HOLDER, put, write

if TYPE_CHECKING:
    from elastic_runtime.checkpoint.storage.storage_contract import Storage


def test_what_is_written_is_read_anywhere(storage: Storage) -> None:
    which = CheckpointId(1, 1)
    storage.create(which)
    # More buffers than one call of the system takes, and empty ones in between.
    pieces = [bytes([number % 251]) * (number % 4) for number in range(3000)]
    content = b"".join(pieces) + b"the end"
    with storage.writer(which, FILE, len(content)) as out:
        out.write([memoryview(piece) for piece in pieces])
        out.write([])
        out.write([memoryview(b"the end")])
    assert storage.read_bytes(which, FILE) == content
    assert storage.sizes(which) == {FILE: len(content)}
    with storage.reader(which, FILE) as reader:
        buffers = [memoryview(bytearray(size % 4)) for size in range(2500)]
        reader.readinto(100, buffers)
        assert b"".join(buffers) == content[100 : 100 + sum(b.nbytes for b in buffers)]


def test_what_is_missing_is_damage_that_names_the_file(storage: Storage) -> None:
    which = put(storage, 5).id
    where = storage.place(which, FILE)
    with storage.reader(which, FILE) as reader, pytest.raises(DamagedCheckpoint, match=where):
        reader.readinto(5, [memoryview(bytearray(9))])
    with pytest.raises(DamagedCheckpoint, match="rank-1"):
        storage.read_bytes(which, "rank-1.distcp")
    with pytest.raises(DamagedCheckpoint, match="rank-1"), storage.reader(which, "rank-1.distcp"):
        pass


def test_terms_only_grow(storage: Storage) -> None:
    assert [storage.take_term(HOLDER) for _ in range(3)] == [1, 2, 3]
    assert storage.names() == ["term-3"]
    put(storage, step=5, term=9)
    assert storage.take_term(HOLDER) == 10


def _holder(round_number: object, incarnation: str = "life") -> dict[str, object]:
    return {**HOLDER, "incarnation": incarnation, "round": round_number}


def test_who_is_still_in_an_earlier_round_takes_no_term_from_a_later_one(storage: Storage) -> None:
    assert storage.take_term(_holder(33)) == 1
    with pytest.raises(Superseded, match=r"term 1 \(run r1, round 33, .*still in round 32"):
        storage.take_term(_holder(32))
    assert storage.names() == ["term-1"]
    assert [storage.take_term(_holder(n)) for n in (33, 34)] == [2, 3]


def test_rounds_of_another_life_of_the_job_count_from_one_again(storage: Storage) -> None:
    storage.take_term(_holder(33))
    assert storage.take_term(_holder(1, "another")) == 2
    assert storage.take_term(HOLDER) == 3  # without an agent nobody counts rounds


@pytest.mark.parametrize("content", [b"", b"[]", b'{"incarnation": "life", "round": "x"}'])
def test_a_term_of_somebody_unknown_is_followed_by_the_next(
    storage: Storage, content: bytes
) -> None:
    storage._create_exclusively("term-4", content)
    assert storage.take_term(_holder(1)) == 5


def test_the_holder_of_an_older_term_is_stopped_and_told_by_whom(storage: Storage) -> None:
    older = storage.take_term(HOLDER)
    which = CheckpointId(term=older, step=9)
    storage.create(which)
    newer = storage.take_term({"run": "r2", "round": 5, "host": "there"})
    with pytest.raises(CheckpointError, match=r"term 2 \(run r2, round 5, there\).*term 1"):
        storage.check_term(older)
    with pytest.raises(CheckpointError, match="term 2"):
        storage.commit(Manifest(step=9, term=older, world=1))
    assert not storage.has_manifest(which)
    storage.check_term(newer)


def test_it_is_a_checkpoint_once_it_has_a_manifest(storage: Storage) -> None:
    which = CheckpointId(term=1, step=7)
    storage.create(which)
    write(storage, which, FILE, b"half")
    assert not storage.has_manifest(which)
    assert storage.read_manifest(which) is None
    manifest = put(storage, step=8)
    assert storage.has_manifest(manifest.id)
    assert storage.read_manifest(manifest.id) == manifest


def test_a_file_whose_writing_fails_is_not_part_of_anything(storage: Storage) -> None:
    which = CheckpointId(term=1, step=7)
    storage.create(which)
    with pytest.raises(ZeroDivisionError), storage.writer(which, FILE, 4) as out:
        out.write([memoryview(b"half")])
        raise ZeroDivisionError
    storage.discard(which)
    assert storage.names() == []


def test_the_rest_of_a_failed_save_is_not_written_over(storage: Storage) -> None:
    which = CheckpointId(term=1, step=7)
    storage.create(which)
    write(storage, which, FILE, b"half")
    assert not storage.create(which)
    storage.discard(which)
    assert storage.create(which)


def test_what_is_removed_is_gone_and_nothing_else(storage: Storage) -> None:
    manifest, other = put(storage, 10), put(storage, 20)
    storage.remove(manifest)
    assert storage.names() == [other.id.name]
    assert storage.read_manifest(other.id) == other
    assert storage.read_manifest(manifest.id) is None
    storage.finish_removals()


def test_a_term_that_looks_free_in_a_stale_listing_is_not_enough(tmp_path: Path) -> None:
    class Stale(LocalStorage):
        listings = 0

        def names(self) -> list[str]:
            self.listings += 1
            return [] if self.listings == 1 else super().names()

    (tmp_path / "term-5").touch()
    assert Stale(tmp_path).take_term(HOLDER) == 6


# Checkpoints in a directory: what the file system, or a person in it, may do to them


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


def _fill(path: str) -> None:
    """A limit on the size of files fails at the same place as a disk without space."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    storage, which = LocalStorage(path), CheckpointId(1, 1)
    storage.create(which)
    with storage.writer(which, "file", 1 << 20) as out:
        for _ in range(64):
            out.write([memoryview(bytes(1 << 16))])


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    (outcome,) = run_ranks(1, _fill, str(tmp_path))
    assert outcome.text == (
        f"cannot save to {tmp_path}/step-1.term-1/file: File too large; "
        "raise the limit on file sizes (ulimit -f)"
    )


def test_a_checkpoint_that_may_not_be_seen_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "step-9.term-1").symlink_to("step-9.term-1")
    with pytest.raises(CheckpointError, match=r"cannot read .*step-9\.term-1"):
        LocalStorage(tmp_path).has_manifest(CheckpointId(term=1, step=9))


# Which storage a path or URL stands for, and what is no place at all


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
