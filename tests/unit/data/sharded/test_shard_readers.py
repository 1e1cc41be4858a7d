"""Shards of all kinds, read from any place on; and windows of them, whatever the storage does."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import sys
import tarfile
from functools import partial
from typing import TYPE_CHECKING, Any

import datasets  # type: ignore[import-untyped]
import fsspec
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from elastic_runtime.data.sharded import window_reader
from elastic_runtime.data.sharded.lot_plan import Place, WindowFound
from elastic_runtime.data.sharded.shard_readers import (
    IterableReader,
    JsonLinesReader,
    ParquetReader,
    TarReader,
    format_of,
    reader_for,
)
from elastic_runtime.data.sharded.window_reader import WindowReader
from elastic_runtime.errors import BrokenShard, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from elastic_runtime.data.sharded.shard_readers import ShardReader


def written(path: Path, content: bytes) -> Path:
    """A file with this content, compressed as its name says."""
    pack = {".gz": gzip, ".tgz": gzip, ".bz2": bz2, ".xz": lzma}.get(path.suffix)
    path.write_bytes(pack.compress(content) if pack else content)
    return path


def archive(files: Iterable[tuple[str, bytes]], kind: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar archive of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as made:
        for name, content in files:
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
@pytest.mark.parametrize("url", ["", "file://"])
def test_a_tar_goes_on_from_every_mark(tmp_path: Path, name: str, url: str) -> None:
    for files, samples in ((FILES, SAMPLES), ({}, [])):
        path = f"{url}{written(tmp_path / name, archive(files.items()))}"
        assert samples_from_every_mark(lambda mark, path=path: TarReader(path, mark)) == samples


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_mark_is_before_the_headers_that_a_long_name_has(tmp_path: Path, kind: int) -> None:
    names = [f"{'long' * 20}/{'name' * 20}{n}" for n in range(3)]
    names += [] if kind == tarfile.USTAR_FORMAT else ["é" * 300, "short"]
    path = written(tmp_path / "a.tar", archive(((f"{name}.txt", b"1") for name in names), kind))
    samples = samples_from_every_mark(lambda mark: TarReader(path, mark))
    assert samples == [{"__key__": name, "txt": b"1"} for name in names]


def test_a_key_has_its_folder_and_an_extension_begins_at_the_first_dot(tmp_path: Path) -> None:
    """A key that comes back is another sample."""
    names = ["a.txt", "x/a.txt", "x/a.b.c.txt", "./x.y/a.txt", "x.y/a.txt", "/r/a.TXT", "a.b"]
    path = written(tmp_path / "a.tar", archive((name, name.encode()) for name in names))
    assert samples_from_every_mark(lambda mark: TarReader(path, mark)) == [
        {"__key__": "a", "txt": b"a.txt"},
        {"__key__": "x/a", "txt": b"x/a.txt", "b.c.txt": b"x/a.b.c.txt"},
        {"__key__": "./x.y/a", "txt": b"./x.y/a.txt"},
        {"__key__": "x.y/a", "txt": b"x.y/a.txt"},
        {"__key__": "/r/a", "TXT": b"/r/a.TXT"},
        {"__key__": "a", "b": b"a.b"},
    ]


def test_folders_links_hidden_files_and_names_without_a_dot_are_no_samples(tmp_path: Path) -> None:
    path, no_files = tmp_path / "a.tar", {"d.ir": tarfile.DIRTYPE, "z.dir": tarfile.DIRTYPE}
    no_files |= {"d.ir/a.link": tarfile.SYMTYPE, "d.ir/a.same": tarfile.LNKTYPE}
    no_files |= {"d.ir/a.pipe": tarfile.FIFOTYPE}
    names = ["d.ir", "d.ir/.hidden.txt", "d.ir/a.txt", "d.ir/README", "d.ir/a.link", "d.ir/a.same"]
    with tarfile.open(path, "w") as made:
        for name in [*names, "d.ir/a.pipe", "d.ir/a.cls", "._a.txt", "b.txt", "z.dir"]:
            member = tarfile.TarInfo(name)
            member.type = no_files.get(name, tarfile.REGTYPE)
            member.size = int(name not in no_files)
            made.addfile(member, io.BytesIO(b"1"))
    assert samples_from_every_mark(lambda mark: TarReader(path, mark)) == [
        {"__key__": "d.ir/a", "txt": b"1", "cls": b"1"},
        {"__key__": "b", "txt": b"1"},
    ]


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
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.Table.from_pylist(ROWS).schema)
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


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        ParquetReader("a.parquet")


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
    reader = IterableReader(Stateful())
    next(reader)
    mark = reader.mark()  # what the iterable changes later makes no difference to it
    assert list(reader) == list(IterableReader(Stateful(), mark)) == [1, 2, 3, 4, 5, 6]
    _, marks = marked(IterableReader(Stateful()))
    Stateful.given = 0
    assert list(IterableReader(Stateful(), marks[5])) == [5, 6]
    assert Stateful.given == 2


def test_a_state_that_is_only_there_after_the_first_sample_will_do() -> None:
    class Late(Stateful):
        def state_dict(self) -> dict[str, Any]:
            assert self.at[0] > self.begun
            return super().state_dict()

        def __iter__(self) -> Iterator[int]:
            self.begun = self.at[0]
            return super().__iter__()

    assert samples_from_every_mark(lambda mark: IterableReader(Late(), mark)) == [*range(7)]


def test_a_shard_of_hugging_face_goes_on_from_every_mark() -> None:
    def rows(parts: list[int]) -> Iterator[dict[str, int]]:
        for part in parts:
            for n in range(5):
                yield {"n": 5 * part + n}

    data = datasets.IterableDataset.from_generator(rows, gen_kwargs={"parts": [0, 1, 2]})
    data = data.filter(lambda row: row["n"] % 4 != 1).map(lambda row: {"n": row["n"] + 100})
    read = partial(data.shard, 3)  # its second argument says which
    for number, expected in enumerate([[0, 2, 3, 4], [6, 7, 8], [10, 11, 12, 14]]):
        samples = samples_from_every_mark(partial(reader_for, read, number))
        assert [sample["n"] - 100 for sample in samples] == expected


@pytest.mark.parametrize(
    "state", [object(), b"1", {1}, {"a": {1: 2}}, {"a": [float("nan")]}, {"a": [{"b": 1j}]}]
)
def test_a_state_that_is_no_plain_json_is_refused(state: Any) -> None:
    """Which is no fault of the shard's."""

    class Odd(Stateful):
        def state_dict(self) -> dict[str, Any]:
            return {"state": state}

    words = r"state_dict\(\).*cannot be saved as their position"
    with pytest.raises(UsageError, match=words) as caught:
        WindowReader([0], lambda _: Odd()).window(Place((0,)), 1)
    assert not isinstance(caught.value, BrokenShard)


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


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "tar", "a.tar.zip", "a?b=c.tar"])
def test_a_name_that_tells_no_format_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="give read= one of 'jsonl', 'parquet', 'tar'"):
        format_of(name)


# Windows of streams: the samples that come next, whatever the shards and the storage do


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_reader, "_LONGEST_WAIT_S", 0.001)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def after(place: Place, found: WindowFound) -> Place:
    """Where a stream goes on, as it is saved."""
    left = place.shards[len(place.shards) - found.left :]
    return Place(left, json.loads(json.dumps(found.mark)))


def all_of(reader: WindowReader, place: Place, size: int) -> list[Any]:
    """The rest of a stream, in windows of a size."""
    samples: list[Any] = []
    while place.shards:
        window = reader.window(place, size)
        samples += window.samples
        assert window.found.total == len(window.samples) <= size
        place = after(place, window.found)
    return samples


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    skip=st.integers(0, 12),
    sizes=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=4),
)
def test_windows_give_one_shard_after_the_other(
    lengths: list[int], skip: int, sizes: list[tuple[int, bool]]
) -> None:
    parts = [[f"{shard}.{n}" for n in range(length)] for shard, length in enumerate(lengths)]
    expected = [sample for part in parts for sample in part][skip:]
    shard_of = [shard for shard, part in enumerate(parts) for _ in part][skip:]
    reader, place = WindowReader(parts, iter), Place(tuple(range(len(parts))), None, skip)
    for size, afresh in sizes:
        samples, runs, found = reader.window(place, size)
        if afresh:  # a process that has not read the window before finds the same
            reader = WindowReader(parts, iter)
            assert reader.window(place, size) == (samples, runs, found)
        assert reader.window(place, size) == (samples, runs, found)
        assert samples == expected[:size]
        assert [run.shard for run in runs for _ in range(run.length)] == shard_of[:size]
        assert [run.shard for run in runs] == [*place.shards[: len(runs)]]
        if len(samples) < size:
            assert found == (len(samples), 0, None)
            assert len(runs) == len(place.shards)
        else:
            assert found[:2] == (size, len(parts) - runs[-1].shard)
            assert runs[-1].length > 0
        place = after(place, found)
        expected, shard_of = expected[size:], shard_of[size:]
        if not place.shards:
            break


def shards(folder: Path, form: str, number: int = 3) -> list[Path]:
    """Files of 0, 10, 20, … samples each, of some format."""
    paths = []
    for shard in range(number):
        path = folder / f"{shard}.{form}"
        names = [f"{shard}.{n}" for n in range(10 * shard)]
        if form == "parquet":
            texts = pyarrow.table({"json": pyarrow.array(names, pyarrow.string())})
            pq.write_table(texts, path, row_group_size=7)
        elif form.startswith("tar"):
            files = ((f"{name.replace('.', '-')}.json", name.encode()) for name in names)
            written(path, archive(files))
        else:
            written(path, "".join(f"{name}\n" for name in names).encode())
        paths.append(path)
    return paths


def text_of(sample: Any) -> str:
    content = sample["json"] if isinstance(sample, dict) else sample
    return content if isinstance(content, str) else content.decode().strip()


@pytest.mark.parametrize("form", ["tar", "tar.gz", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("by_url", [False, True])
def test_files_of_any_format_in_windows_of_any_size(
    tmp_path: Path, form: str, by_url: bool
) -> None:
    paths: list[Any] = shards(tmp_path, form)
    if by_url:
        paths = [f"file://{path}" for path in paths]
    expected = [f"{shard}.{n}" for shard in (2, 0, 1) for n in range(10 * shard)]
    before = descriptors()
    for size in (1, 7, 20, 25, 30, 31):
        reader = WindowReader(paths, form.partition(".")[0])
        samples = all_of(reader, Place((2, 0, 1), None, 4), size)
        assert [text_of(sample) for sample in samples] == expected[4:]
    reader.window(Place((1,)), 1)
    assert descriptors() > before
    del reader
    assert descriptors() == before


def test_of_too_many_open_shards_those_unused_for_longest_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window_reader, "_MOST_OPEN", 2)
    opened: set[int] = set()

    def read(shard: int) -> Iterator[str]:
        opened.add(shard)
        try:
            yield from (f"{shard}.{n}" for n in range(9))
        finally:
            opened.remove(shard)

    reader, places = WindowReader(range(4), read), [Place((shard,)) for shard in range(4)]
    found: list[list[str]] = [[], [], [], []]
    last = 0
    for shard in [0, 1, 0, 2, 0, 3] * 3:
        window = reader.window(places[shard], 1)
        found[shard] += window.samples
        places[shard] = after(places[shard], window.found)
        assert opened == {last, shard}
        last = shard
    assert found == [[f"{n}.{m}" for m in range(9 if n == 0 else 3)] for n in range(4)]


def broken(
    shard: object, read: str | Callable[[Any], Any], name: str = ""
) -> tuple[list[Any], str]:
    """What comes before the error about a shard, and the error's words but the shard's name."""
    before, samples = descriptors(), []
    reader, place = WindowReader([shard], read), Place((0,))
    with pytest.raises(BrokenShard) as caught:
        while place.shards:
            window = reader.window(place, 1)
            samples += window.samples
            place = after(place, window.found)
    text = str(caught.value)
    assert text.startswith(f"the shard {name or shard} cannot be read: ")
    mend = "mend it" if isinstance(read, str) else "mend it, or what read= makes of it,"
    assert text.endswith(
        (mend, "see to the path")[": FileNotFoundError" in text]
        + " and start the job again, which then goes on from its last checkpoint"
    )
    assert "\n" not in text
    assert descriptors() == before
    return samples, text.removeprefix(f"the shard {name or shard} cannot be read: ")


TAR = archive([("a.x", b"1" * 700), ("a.y", b"2" * 512), ("b.x", b"3" * 100), ("c.x", b"4" * 1025)])
BOUNDARIES = [0, 1536, 2560, 3584, 5632]  # between files; the last: before the archive's end
KEYS = [("a", 2560), ("b", 3584), ("c", 5632)]  # and where they end


def test_a_tar_that_is_cut_anywhere_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    first = {"__key__": "a", "x": b"1" * 700, "y": b"2" * 512}
    for cut in sorted({*range(0, 5633, 100), *BOUNDARIES, *(n + 1 for n in BOUNDARIES[:-1])}):
        path.write_bytes(TAR[:cut])
        samples, words = broken(path, "tar")
        assert words.startswith("ReadError: "), cut
        # A sample is over once the next file has begun; what is given is whole.
        given = [key for key, end in KEYS if end + 512 <= cut]
        assert [sample["__key__"] for sample in samples] == given, cut
        assert samples[:1] in ([], [first])


@pytest.mark.parametrize("start", BOUNDARIES)
@pytest.mark.parametrize("garbage", [b"\xff", b"x", b"\0\0\0x"])
def test_a_tar_with_garbage_in_place_of_a_header_is_broken(
    tmp_path: Path, start: int, garbage: bytes
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(TAR[:start] + garbage * (512 // len(garbage)) + TAR[start + 512 :])
    samples, words = broken(path, "tar")
    assert words.startswith("ReadError: ")
    assert [sample["__key__"] for sample in samples] == [key for key, end in KEYS if end < start]


@pytest.mark.parametrize("form", ["tar", "jsonl"])
def test_gzip_that_is_cut_or_damaged_is_broken(tmp_path: Path, form: str) -> None:
    noise = random.Random(1)
    lines = [noise.randbytes(300).hex() for _ in range(30)]
    if form == "tar":
        whole = archive((f"{n}.txt", line.encode()) for n, line in enumerate(lines))
    else:
        whole = "".join(f"{line}\n" for line in lines).encode()
    packed, path = gzip.compress(whole), tmp_path / f"a.{form}.gz"
    half = len(packed) // 2
    for content, error in [
        (packed[:1], "BadGzipFile"),
        *((packed[:cut], "EOFError") for cut in (2, 10, 12, half, half * 3 // 2)),
        *((packed[:-lost], "EOFError") for lost in range(1, 9) if form == "jsonl"),
        (b"garbage" * 100, "BadGzipFile"),
        (packed[:10] + b"\xff" * 9000, "invalid block type"),
    ]:
        path.write_bytes(content)
        samples, words = broken(path, form)
        assert error in words
        texts = [each["txt"].decode() if form == "tar" else text_of(each) for each in samples]
        if error == "EOFError":
            assert texts == lines[: len(texts)]
        else:
            assert len(texts) < len(lines)


@pytest.mark.parametrize("form", ["tar", "jsonl", "parquet"])
def test_a_shard_that_is_not_there_or_no_file_is_broken(tmp_path: Path, form: str) -> None:
    (tmp_path / "file").touch()
    for path, word in [
        (tmp_path / "none", "FileNotFoundError"),
        (tmp_path / "none.gz", "FileNotFoundError"),
        (tmp_path, "IsADirectoryError"),
        (tmp_path / "file" / "a", "NotADirectoryError"),
        (f"file://{tmp_path}/none", "FileNotFoundError"),
    ]:
        assert broken(path, form)[1].startswith(word)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        *(("a.tar", none, "ReadError: ") for none in (b"", b"x", b"garbage" * 1000)),
        ("a.tar", gzip.compress(TAR), "ReadError: "),
        ("a.parquet", b"", "ArrowInvalid: "),
        ("a.parquet", b"garbage" * 1000, "ArrowInvalid: "),
        ("a.jsonl.bz2", b"garbage garbage", "OSError: Invalid data"),
        *((f"a.jsonl.{kind}", b"", "EOFError: the file is empty") for kind in ("gz", "bz2", "xz")),
    ],
)
def test_a_file_that_is_something_else_is_broken(
    tmp_path: Path, name: str, content: bytes, error: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    samples, words = broken(path, format_of(path))
    assert (samples, words.startswith(error)) == ([], True), words


def test_parquet_that_is_cut_is_broken(tmp_path: Path) -> None:
    content = shards(tmp_path, "parquet")[2].read_bytes()
    for cut in (len(content) // 2, len(content) - 1):
        (tmp_path / "a").write_bytes(content[:cut])
        assert broken(tmp_path / "a", "parquet")[1].startswith("ArrowInvalid: ")


def raises_at_once(_: object) -> Sequence[int]:
    raise ValueError("no\n  such thing")


def raises_later(_: object) -> Iterator[int]:
    yield 1
    raise KeyError("no such thing")


def test_an_error_of_a_function_says_where_it_was_raised() -> None:
    for read, line, before in [(raises_at_once, 1, []), (raises_later, 2, [1])]:
        samples, words = broken(("a", 1), read, "number 0")
        assert "no such thing" in words
        assert f"(in {__file__}:{read.__code__.co_firstlineno + line}); mend it" in words
        assert samples == before


@pytest.mark.parametrize(
    "error", [FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError]
)
def test_what_no_second_try_will_mend_is_tried_once(error: type[OSError]) -> None:
    tries = []

    def read(shard: str) -> Iterator[int]:
        tries.append(shard)
        yield 1
        raise error(2, "no", "there")

    samples, words = broken("s3://b/a", read)
    assert (samples, words.split(":")[0], tries) == ([1], error.__name__, ["s3://b/a"])


class Shaky:
    """Gives lists, but not at the first tries."""

    def __init__(self, failures: int, at: int, error: OSError) -> None:
        self.failures, self.at, self.error, self.tries = failures, at, error, 0

    def __call__(self, shard: Sequence[Any]) -> Iterator[Any]:
        self.tries += 1
        for n, sample in enumerate(shard):
            if n == self.at and self.failures:
                self.failures -= 1
                raise self.error
            yield sample


@pytest.mark.parametrize("error", [OSError(5, "I/O"), ConnectionResetError(), TimeoutError("x")])
@given(
    failures=st.integers(1, 3),
    at=st.integers(0, 4),
    skip=st.integers(0, 7),
    size=st.integers(1, 12),
)
def test_after_an_error_that_passes_nothing_is_lost_or_doubled(
    error: OSError, failures: int, at: int, skip: int, size: int
) -> None:
    parts = ["abcde", "fghij"]
    read = Shaky(failures, at, error)
    reader = WindowReader(parts, read)
    reader._tries.wait = lambda _: 0
    assert "".join(all_of(reader, Place((0, 1), None, skip), size)) == "abcdefghij"[skip:]
    assert read.tries == 2 + failures


def test_an_error_that_lasts_is_raised_with_its_shard_after_several_tries() -> None:
    error = ConnectionResetError("gone")
    read = Shaky(1 << 30, 3, error)
    reader = WindowReader(["abcde"], read)
    mark = reader.window(Place((0,)), 2).found.mark
    words = "the shard abcde is not to be had at present: ConnectionResetError: gone"
    with pytest.raises(OSError, match=words) as caught:
        reader.window(Place((0,), mark), 2)
    assert caught.value.__cause__ is error
    assert 4 <= read.tries < 20
    read.failures = 0  # the storage is there again
    assert all_of(reader, Place((0,), mark), 2) == ["c", "d", "e"]


@pytest.mark.parametrize("compression", ["snappy", "gzip"])
@pytest.mark.parametrize("at", [4, 2000])
def test_parquet_that_is_damaged_is_broken(tmp_path: Path, compression: str, at: int) -> None:
    path = tmp_path / "a.parquet"
    rows = pyarrow.table({"text": [random.randbytes(20).hex() for _ in range(500)]})
    pq.write_table(rows, path, compression=compression, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[at : at + 60] = b"\xff" * 60
    path.write_bytes(content)
    with pytest.raises(BrokenShard, match=r"a.parquet cannot be read: "):
        all_of(WindowReader([path], "parquet"), Place((0,)), 7)


def test_what_is_compressed_is_unpacked_also_with_a_signature_behind_its_name() -> None:
    url = "memory://elastic-test/a.jsonl.gz?sig=x/y.z"
    with fsspec.open(url, "wb", compression=None) as file:
        file.write(gzip.compress(b"1\n2\n"))
    assert format_of(url) == "jsonl"
    assert all_of(WindowReader([url], "jsonl"), Place((0,)), 5) == [b"1\n", b"2\n"]


def test_a_window_of_nothing_leaves_all_as_it_is() -> None:
    place = Place((0, 1), None, 5)
    window = WindowReader(["abc", "def"], iter).window(place, 0)
    assert window.found == WindowFound(0, 2, None)
    assert not window.samples


def test_a_storage_that_is_down_is_not_waited_for_shard_by_shard() -> None:
    calls: list[int] = []

    def read(shard: int) -> Iterator[int]:
        calls.append(shard)
        raise ConnectionError("down")
        yield shard

    reader = WindowReader(range(9), read)
    for shard in range(9):
        with pytest.raises(OSError, match="is not to be had at present"):
            reader.window(Place((shard,)), 1)
    assert [calls.count(shard) for shard in range(9)] == [calls.count(0), *[1] * 8]
    assert calls.count(0) > 3
