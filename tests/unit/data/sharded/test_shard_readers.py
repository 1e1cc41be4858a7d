"""Shards of all kinds: read as they are, and from any mark on just the rest."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.data.sharded.shard_readers import (
    IterableReader,
    JsonLinesReader,
    ParquetReader,
    TarReader,
    check_format,
    format_of,
    reader_for,
)
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from elastic_runtime.data.sharded.shard_readers import ShardReader

_PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".tgz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def written(path: Path, content: bytes) -> Path:
    """A file with this content, compressed as its name says."""
    path.write_bytes(_PACK.get(path.suffix, bytes)(content))
    return path


def archive(
    files: dict[str, bytes] | list[tuple[str, bytes]], kind: int = tarfile.GNU_FORMAT
) -> bytes:
    """A tar archive of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as made:
        for name, content in files.items() if isinstance(files, dict) else files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def marked(reader: ShardReader) -> tuple[list[Any], list[Any]]:
    """All samples, and the marks before each and after the last, as they are saved."""
    marks, samples = [json.dumps(reader.mark())], []
    for sample in reader:
        samples.append(sample)
        marks.append(json.dumps(reader.mark()))
    reader.close()
    return samples, [json.loads(mark) for mark in marks]


def samples_from_every_mark(make: Callable[[Any], ShardReader]) -> list[Any]:
    """All samples, once it is clear that each mark, and each mark of such a reader, is right."""
    samples, marks = marked(make(None))
    assert len(marks) == len(samples) + 1
    for number, mark in enumerate(marks):
        rest, later = marked(make(mark))
        assert rest == samples[number:]
        for further, again in enumerate(later[:3], number):
            assert marked(make(again))[0] == samples[further:]
    return samples


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


FILES = {
    "a.jpg": b"picture",
    "a.cls": b"",
    "b.jpg": bytes(1000),
    "b.seg.png": b"x" * 512,
    "c.jpg": b"\0" * 513,
}
SAMPLES = [
    {"__key__": "a", "jpg": b"picture", "cls": b""},
    {"__key__": "b", "jpg": bytes(1000), "seg.png": b"x" * 512},
    {"__key__": "c", "jpg": b"\0" * 513},
]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz"])
def test_a_tar_goes_on_from_every_mark(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, archive(FILES))
    assert samples_from_every_mark(lambda mark: TarReader(path, mark)) == SAMPLES


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_mark_is_before_the_headers_that_a_long_name_has(tmp_path: Path, kind: int) -> None:
    names = [f"{'long' * 20}/{'name' * 20}{n}" for n in range(3)]
    names += [] if kind == tarfile.USTAR_FORMAT else ["é" * 300, "short"]
    path = written(tmp_path / "a.tar", archive({f"{name}.txt": b"1" for name in names}, kind))
    samples = samples_from_every_mark(lambda mark: TarReader(path, mark))
    assert samples == [{"__key__": name, "txt": b"1"} for name in names]


def test_a_key_has_its_folder_and_an_extension_begins_at_the_first_dot(tmp_path: Path) -> None:
    names = ["a.txt", "x/a.txt", "x/a.b.c.txt", "./x.y/a.txt", "x.y/a.txt", "/r/a.TXT"]
    path = written(tmp_path / "a.tar", archive({name: name.encode() for name in names}))
    assert marked(TarReader(path))[0] == [
        {"__key__": "a", "txt": b"a.txt"},
        {"__key__": "x/a", "txt": b"x/a.txt", "b.c.txt": b"x/a.b.c.txt"},
        {"__key__": "./x.y/a", "txt": b"./x.y/a.txt"},
        {"__key__": "x.y/a", "txt": b"x.y/a.txt"},
        {"__key__": "/r/a", "TXT": b"/r/a.TXT"},
    ]


def test_a_key_that_comes_back_is_another_sample(tmp_path: Path) -> None:
    files = [("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3")]
    path = written(tmp_path / "a.tar", archive(files))
    samples = samples_from_every_mark(lambda mark: TarReader(path, mark))
    assert samples == [
        {"__key__": "a", "x": b"1"},
        {"__key__": "b", "x": b"2"},
        {"__key__": "a", "y": b"3"},
    ]


def test_folders_links_hidden_files_and_names_without_a_dot_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as made:
        for name, kind in [
            ("d.ir", tarfile.DIRTYPE),
            ("d.ir/.hidden.txt", tarfile.REGTYPE),
            ("d.ir/a.txt", tarfile.REGTYPE),
            ("d.ir/README", tarfile.REGTYPE),
            ("d.ir/a.link", tarfile.SYMTYPE),
            ("d.ir/a.same", tarfile.LNKTYPE),
            ("d.ir/a.pipe", tarfile.FIFOTYPE),
            ("d.ir/a.cls", tarfile.REGTYPE),
            ("._a.txt", tarfile.REGTYPE),
            ("b.txt", tarfile.REGTYPE),
            ("z.dir", tarfile.DIRTYPE),
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, 1 if kind == tarfile.REGTYPE else 0
            made.addfile(member, io.BytesIO(b"1"))
    assert samples_from_every_mark(lambda mark: TarReader(path, mark)) == [
        {"__key__": "d.ir/a", "txt": b"1", "cls": b"1"},
        {"__key__": "b", "txt": b"1"},
    ]


def test_a_tar_of_nothing_has_no_samples(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tar", archive({}))
    assert samples_from_every_mark(lambda mark: TarReader(path, mark)) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.xz"])
@given(
    lines=st.lists(
        st.one_of(
            st.sampled_from([b"", b" ", b"\t\r"]),
            st.integers().map(lambda n: str(n).encode()),
            st.text("aé\u2028 ", min_size=1).map(lambda text: json.dumps(text).encode()),
        ),
        max_size=8,
    ),
    at_end=st.sampled_from([b"", b"\n", b"\r\n\n"]),
)
def test_lines_go_on_from_every_mark(
    tmp_path_factory: pytest.TempPathFactory, name: str, lines: list[bytes], at_end: bytes
) -> None:
    path = written(tmp_path_factory.getbasetemp() / name, b"\n".join(lines) + at_end)
    samples = samples_from_every_mark(lambda mark: JsonLinesReader(path, mark))
    assert [sample.rstrip(b"\r\n") for sample in samples] == [
        line.rstrip(b"\r\n") for line in lines if line.strip()
    ]


ROWS = [
    {"n": n, "text": None if n % 7 == 0 else f"line {n}", "list": list(range(n % 3))}
    for n in range(150)
]


def parquet(path: Path, rows: list[dict[str, Any]], groups: list[int]) -> Path:
    """A file with groups of so many rows each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, schema=pa.Table.from_pylist(ROWS).schema)
    with pq.ParquetWriter(path, table.schema) as made:
        first = 0
        for size in groups:
            made.write_table(table.slice(first, size), row_group_size=max(1, size))
            first += size
    return path


@pytest.mark.parametrize("groups", [[150], [64, 86], [1, 63, 65, 21], [2, 128, 0, 20], [0]])
def test_parquet_goes_on_from_every_mark(tmp_path: Path, groups: list[int]) -> None:
    rows = ROWS[: sum(groups)]
    path = parquet(tmp_path / "a.parquet", rows, groups)
    assert samples_from_every_mark(lambda mark: ParquetReader(path, mark)) == rows


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "a.parquet", ROWS, [150])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        ParquetReader(path)


@pytest.mark.parametrize("kind", [list, iter, tuple])
def test_what_a_function_gives_goes_on_from_every_mark(kind: Callable[[Any], Any]) -> None:
    def read(shard: int) -> Any:
        return kind([shard + n for n in range(7)])

    samples = samples_from_every_mark(lambda mark: reader_for(read, 30, mark))
    assert samples == [30, 31, 32, 33, 34, 35, 36]


class Stateful:
    """0, 1, …, 6, with a position of its own; it counts what it gives."""

    given = 0

    def __init__(self) -> None:
        self.at = [0]

    def __iter__(self) -> Iterator[int]:
        while self.at[0] < 7:
            type(self).given += 1
            self.at[0] += 1
            yield self.at[0] - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": tuple(self.at), "deep": {"also": [(1, "two"), None]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["deep"] == {"also": [[1, "two"], None]}
        self.at = list(state["at"])


def test_what_has_a_state_goes_on_from_every_mark_and_reads_nothing_twice() -> None:
    assert samples_from_every_mark(lambda mark: IterableReader(Stateful(), mark)) == [*range(7)]
    _, marks = marked(IterableReader(Stateful()))
    Stateful.given = 0
    assert list(IterableReader(Stateful(), marks[5])) == [5, 6]
    assert Stateful.given == 2


def test_a_mark_is_what_was_saved_not_what_the_iterable_changes_later() -> None:
    reader = IterableReader(Stateful())
    next(reader)
    mark = reader.mark()
    list(reader)
    assert list(IterableReader(Stateful(), mark)) == [1, 2, 3, 4, 5, 6]


def test_a_state_that_is_only_there_after_the_first_sample_will_do() -> None:
    class Late(Stateful):
        def state_dict(self) -> dict[str, Any]:
            assert self.at[0] > self.begun
            return super().state_dict()

        def __iter__(self) -> Iterator[int]:
            self.begun = self.at[0]
            return super().__iter__()

    assert samples_from_every_mark(lambda mark: IterableReader(Late(), mark)) == [*range(7)]


@pytest.mark.parametrize("made_from", ["a generator", "a table"])
def test_a_shard_of_hugging_face_goes_on_from_every_mark(made_from: str) -> None:
    import datasets  # type: ignore[import-untyped]

    def rows(parts: list[int]) -> Iterator[dict[str, int]]:
        for part in parts:
            for n in range(5):
                yield {"n": 5 * part + n}

    if made_from == "a generator":
        data = datasets.IterableDataset.from_generator(rows, gen_kwargs={"parts": [0, 1, 2]})
    else:
        table = datasets.Dataset.from_dict({"n": list(range(15))})
        data = table.to_iterable_dataset(num_shards=3)
    data = data.filter(lambda row: row["n"] % 4 != 1).map(lambda row: {"n": row["n"] + 100})
    read = partial(data.shard, 3)  # its second argument says which
    for number, expected in enumerate([[0, 2, 3, 4], [6, 7, 8], [10, 11, 12, 14]]):
        samples = samples_from_every_mark(partial(reader_for, read, number))
        assert [sample["n"] - 100 for sample in samples] == expected


@pytest.mark.parametrize(
    "state", [object(), b"1", {1}, {"a": {1: 2}}, {"a": [float("nan")]}, {"a": [{"b": 1j}]}]
)
def test_a_state_that_is_no_plain_json_is_refused(state: Any) -> None:
    class Odd(Stateful):
        def state_dict(self) -> dict[str, Any]:
            return {"state": state}

    reader = IterableReader(Odd())
    next(reader)
    with pytest.raises(UsageError, match=r"state_dict\(\).*cannot be saved as their position"):
        reader.mark()


@pytest.mark.parametrize("end", ["", ".gz", ".xz"])
def test_urls_of_fsspec_are_read_as_paths_are(tmp_path: Path, end: str) -> None:
    path = written(tmp_path / f"a.tar{end}", archive(FILES))
    assert samples_from_every_mark(lambda mark: TarReader(f"file://{path}", mark)) == SAMPLES
    path = written(tmp_path / f"a.jsonl{end}", b"1\n\n2\n3")
    lines = samples_from_every_mark(lambda mark: JsonLinesReader(f"file://{path}", mark))
    assert lines == [b"1\n", b"2\n", b"3"]
    path = parquet(tmp_path / "a.parquet", ROWS, [20, 130])
    reader = ParquetReader(f"file://{path}", 17)
    assert list(reader) == ROWS[17:]
    reader.close()


@pytest.mark.parametrize("form", ["tar", "jsonl", "parquet"])
def test_a_format_by_name_and_nothing_is_left_open(tmp_path: Path, form: str) -> None:
    whole = written(tmp_path / "a", archive(FILES) if form == "tar" else b"1\n")
    if form == "parquet":
        parquet(whole, ROWS, [150])
    before = descriptors()
    reader = reader_for(form, whole, None)
    first = next(reader)
    assert descriptors() > before
    reader.close()
    assert descriptors() == before
    assert first == {"tar": SAMPLES[0], "jsonl": b"1\n", "parquet": ROWS[0]}[form]


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_a_shard_that_cannot_be_opened_is_not_left_open(tmp_path: Path, form: str) -> None:
    broken = written(tmp_path / "a", b"garbage" * 300)
    before = descriptors()
    with pytest.raises((tarfile.ReadError, ValueError)):
        reader_for(form, broken, None)
    assert descriptors() == before


def test_closing_ends_a_generator() -> None:
    ended = []

    def read(_: object) -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            ended.append(True)

    reader = reader_for(read, 0, None)
    next(reader)
    assert not ended
    reader.close()
    assert ended


def test_the_end_of_a_name_tells_its_format() -> None:
    for form, names in {
        "jsonl": ["a.jsonl", "b/a.tar.jsonl.gz", "a.ndjson.bz2", "a.json.xz", "a.json"],
        "parquet": ["a.parquet", "s3://b/a.pq"],
        "tar": ["a.tar", "a.tgz", "a.jsonl.tar", "https://h/a.tar.gz?key=1.jsonl"],
    }.items():
        assert {format_of(name) for name in names} == {form}


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "tar", "a.tar.zip", "a?b=c.tar", 3])
def test_a_name_that_tells_no_format_is_refused(name: object) -> None:
    with pytest.raises(UsageError, match="give read= one of 'jsonl', 'parquet', 'tar'"):
        format_of(name)


def test_what_is_no_format_is_refused() -> None:
    for good in ("jsonl", "parquet", "tar", list):
        check_format(good)
    for bad in ("csv", "", 3):
        with pytest.raises(UsageError, match=f"read={bad!r} is not known"):
            check_format(bad)
