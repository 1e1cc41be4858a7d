"""A file is written in large batches, with a checksum for each part and one for all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import crc32c
import pytest

from elastic_runtime.checkpoint.format.manifest import CheckpointId, FileRecord
from elastic_runtime.checkpoint.save import file_writer
from elastic_runtime.checkpoint.save.file_writer import WRITE_SIZE, section, with_parts, write_file
from elastic_runtime.checkpoint.save.staging import PartBytes
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHICH = CheckpointId(1, 2)


class Recorded(LocalStorage):
    """A directory that notes how many bytes each write has, and in how many buffers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes: list[tuple[int, int]] = []

    @contextmanager
    def writer(self, which: CheckpointId, name: str, size: int) -> Iterator[Any]:
        with super().writer(which, name, size) as out:
            write = out.write

            def noted(buffers: Any) -> None:
                self.writes.append((sum(one.nbytes for one in buffers), len(buffers)))
                write(buffers)

            out.write = noted  # type: ignore[method-assign]
            yield out


@pytest.fixture
def storage(tmp_path: Path) -> Recorded:
    made = Recorded(tmp_path)
    assert made.create(WHICH)
    return made


def written(storage: LocalStorage, parts: list[list[bytes]], *, alone: bool) -> FileRecord:
    sources = [PartBytes(tuple(map(memoryview, views)), len(views) - 1) for views in parts]
    size = sum(len(view) for views in parts for view in views)
    return write_file(storage, WHICH, "it", size, sources, alone=alone)


@pytest.mark.parametrize("alone", [False, True])
def test_parts_are_recorded_with_their_places_and_checksums(storage: Recorded, alone: bool) -> None:
    contents = [os.urandom(WRITE_SIZE + 5), b"abc", os.urandom(70), os.urandom(2 * WRITE_SIZE)]
    record = written(storage, [[one[:3], one[3:]] for one in contents], alone=alone)
    whole = b"".join(contents)
    assert storage.read_bytes(WHICH, "it") == whole
    assert (record.bytes, record.crc32c) == (len(whole), crc32c.crc32c(whole))
    assert [part.crc32c for part in record.parts] == [crc32c.crc32c(one) for one in contents]
    assert [part.offset for part in record.parts] == [
        sum(map(len, contents[:number])) for number in range(len(contents))
    ]
    assert {part.data for part in record.parts} == {1}
    assert max(size for size, _ in storage.writes) == WRITE_SIZE


def test_small_parts_share_a_write_as_far_as_the_kernel_takes_them(storage: Recorded) -> None:
    count = file_writer._MOST_VIEWS + 10
    record = written(storage, [[b"x"]] * count, alone=False)
    assert [buffers for _, buffers in storage.writes] == [file_writer._MOST_VIEWS, 10]
    assert len(record.parts) == count


def test_a_file_that_is_not_wanted_any_more_is_given_up(storage: Recorded) -> None:
    def stop(count: int) -> None:
        raise KeyError(count)

    source = PartBytes((memoryview(bytes(10)),))
    with pytest.raises(KeyError, match="10"):
        write_file(storage, WHICH, "it", 10, [source], alone=False, advance=stop)
    assert storage.writes == []


def test_a_record_travels_with_its_parts(storage: Recorded) -> None:
    record = written(storage, [[b"head", b"raw"], [b"more"]], alone=False)
    again = with_parts(section(record))
    assert (again.name, again.bytes, again.crc32c) == (record.name, record.bytes, record.crc32c)
    assert tuple(again.parts) == record.parts
