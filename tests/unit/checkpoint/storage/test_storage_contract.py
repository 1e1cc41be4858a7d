"""What every storage of checkpoints does, shown on two: a directory, and an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import (
    CheckpointError,
    DamagedCheckpoint,
    Superseded,
)
from tests.small_checkpoints import FILE, HOLDER, put, write

if TYPE_CHECKING:
    from pathlib import Path

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


def test_who_is_still_in_an_earlier_round_takes_no_term_from_a_later_one(
    storage: Storage,
) -> None:
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
