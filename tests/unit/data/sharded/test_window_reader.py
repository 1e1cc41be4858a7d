"""Windows of streams: the samples that come next, whatever the shards and the storage do."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from elastic_runtime.data.sharded import window_reader
from elastic_runtime.data.sharded.lot_plan import Place, WindowFound
from elastic_runtime.data.sharded.shard_readers import format_of
from elastic_runtime.data.sharded.window_reader import WindowReader
from elastic_runtime.errors import BrokenShard, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


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


def in_tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


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
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = []
    for shard in range(number):
        path = folder / f"{shard}.{form}"
        names = [f"{shard}.{n}" for n in range(10 * shard)]
        if form == "parquet":
            texts = pa.table({"json": pa.array(names, pa.string())})
            pq.write_table(texts, path, row_group_size=7)
        elif form.startswith("tar"):
            content = in_tar({f"{name.replace('.', '-')}.json": name.encode() for name in names})
            path.write_bytes(gzip.compress(content) if form == "tar.gz" else content)
        else:
            content = "".join(f"{name}\n" for name in names).encode()
            path.write_bytes(gzip.compress(content) if form == "jsonl.gz" else content)
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


def test_a_window_that_is_read_again_is_the_same_and_so_is_the_next(tmp_path: Path) -> None:
    path, first = tmp_path / "a.jsonl", Place((0,))
    path.write_bytes(b"1\n2\n3\n4\n5\n6\n")
    reader = WindowReader([path], "jsonl")
    second = after(first, reader.window(first, 2).found)
    for place, expected in [(second, "34"), (first, "12"), (second._replace(skip=1), "45")]:
        assert "".join(map(text_of, reader.window(place, 2).samples)) == expected


def test_a_shard_is_kept_open_from_window_to_window() -> None:
    begun = []

    def read(shard: int) -> Iterator[int]:
        begun.append(shard)
        yield from range(10)

    reader = WindowReader([0], read)
    assert all_of(reader, Place((0,)), 3) == [*range(10)]
    assert begun == [0]


def test_of_too_many_open_shards_those_unused_for_longest_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_reader, "_MOST_OPEN", 2)
    paths = [tmp_path / f"{shard}.jsonl" for shard in range(4)]
    for path in paths:
        path.write_text("".join(f"{path.stem}.{n}\n" for n in range(9)))
    reader = WindowReader(paths, "jsonl")
    places = [Place((shard,)) for shard in range(4)]
    found: list[list[str]] = [[], [], [], []]
    last = None
    for shard in [0, 1, 0, 2, 0, 3] * 3:
        window = reader.window(places[shard], 1)
        found[shard] += map(text_of, window.samples)
        places[shard] = after(places[shard], window.found)
        files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        assert {path.stem for path in paths if str(path.resolve()) in files} == {
            str(each) for each in (last, shard) if each is not None
        }
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


TAR = in_tar({"a.x": b"1" * 700, "a.y": b"2" * 512, "b.x": b"3" * 100, "c.x": b"4" * 1025})
BOUNDARIES = [0, 1536, 2560, 3584, 5632]  # between files; the last: before the archive's end
KEYS = [("a", 2560), ("b", 3584), ("c", 5632)]  # and where they end


def test_a_tar_that_is_cut_anywhere_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for cut in sorted({*range(0, 5633, 100), *BOUNDARIES, *(n + 1 for n in BOUNDARIES[:-1])}):
        path.write_bytes(TAR[:cut])
        samples, words = broken(path, "tar")
        assert words.startswith("ReadError: "), cut
        # A sample is over once the next file has begun; what is given is whole.
        given = [key for key, end in KEYS if end + 512 <= cut]
        assert [sample["__key__"] for sample in samples] == given, cut
        assert given[:1] != ["a"] or samples[0] == {
            "__key__": "a",
            "x": b"1" * 700,
            "y": b"2" * 512,
        }


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


def test_a_tar_that_is_none_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for content in (b"", b"x", b"garbage" * 1000, gzip.compress(TAR)):
        path.write_bytes(content)
        assert broken(path, "tar")[0] == []


@pytest.mark.parametrize("form", ["tar", "jsonl"])
def test_gzip_that_is_cut_or_damaged_is_broken(tmp_path: Path, form: str) -> None:
    noise = random.Random(1)
    lines = [noise.randbytes(300).hex() for _ in range(30)]
    if form == "tar":
        whole = in_tar({f"{n}.txt": line.encode() for n, line in enumerate(lines)})
    else:
        whole = "".join(f"{line}\n" for line in lines).encode()
    packed, path = gzip.compress(whole), tmp_path / f"a.{form}.gz"
    half = len(packed) // 2
    for content, error in [
        (packed[:1], "BadGzipFile"),
        (packed[:12], "EOFError"),
        (packed[:half], "EOFError"),
        (packed[: half * 3 // 2], "EOFError"),
        (b"garbage" * 100, "BadGzipFile"),
        (packed[:10] + b"\xff" * 9000, "invalid block type"),
    ]:
        path.write_bytes(content)
        samples, words = broken(path, form)
        assert error in words
        texts = [each["txt"].decode() if form == "tar" else text_of(each) for each in samples]
        if error == "EOFError":
            assert texts == lines[: len(texts)]
        assert len(texts) < len(lines)


def test_lines_whose_gzip_lacks_its_last_byte_are_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    packed = gzip.compress(b"1\n2\n")
    for lost in range(1, len(packed)):
        path.write_bytes(packed[:-lost])
        assert broken(path, "jsonl")[0] in ([], [b"1\n"], [b"1\n", b"2\n"])


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


def test_parquet_that_is_none_is_broken(tmp_path: Path) -> None:
    (whole,) = shards(tmp_path, "parquet")[2:]
    content, path = whole.read_bytes(), tmp_path / "a"
    for bad in (b"", b"garbage" * 1000, content[: len(content) // 2], content[:-1]):
        path.write_bytes(bad)
        assert broken(path, "parquet")[1].startswith("ArrowInvalid: ")


def raises_at_once(_: object) -> Sequence[int]:
    raise ValueError("no such thing")


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


def test_a_state_that_cannot_be_saved_is_refused() -> None:
    class Odd:
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

        def state_dict(self) -> dict[str, Any]:
            return {"at": b"1"}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    with pytest.raises(UsageError, match="cannot be saved as their position") as caught:
        WindowReader([0], lambda _: Odd()).window(Place((0,)), 1)
    assert not isinstance(caught.value, BrokenShard)


def test_bz2_that_is_none_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.bz2"
    path.write_bytes(b"garbage garbage")
    with pytest.raises(BrokenShard, match=r"a.jsonl.bz2 cannot be read: OSError: Invalid data"):
        WindowReader([path], "jsonl").window(Place((0,)), 1)


@pytest.mark.parametrize("compression", ["snappy", "gzip"])
@pytest.mark.parametrize("at", [4, 2000])
def test_parquet_that_is_damaged_is_broken(tmp_path: Path, compression: str, at: int) -> None:
    path = tmp_path / "a.parquet"
    rows = pyarrow.table({"text": [random.randbytes(20).hex() for _ in range(500)]})
    parquet.write_table(rows, path, compression=compression, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[at : at + 60] = b"\xff" * 60
    path.write_bytes(content)
    with pytest.raises(BrokenShard, match=r"a.parquet cannot be read: "):
        all_of(WindowReader([path], "parquet"), Place((0,)), 7)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_an_empty_file_is_nothing_that_was_compressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl.{suffix}"
    path.touch()
    with pytest.raises(BrokenShard, match="EOFError: the file is empty"):
        WindowReader([path], "jsonl").window(Place((0,)), 1)


def test_what_is_compressed_is_unpacked_also_with_a_signature_behind_its_name() -> None:
    url = "memory://elastic-test/a.jsonl.gz?sig=x/y.z"
    with fsspec.open(url, "wb", compression=None) as file:
        file.write(gzip.compress(b"1\n2\n"))
    assert format_of(url) == "jsonl"
    assert all_of(WindowReader([url], "jsonl"), Place((0,)), 5) == [b"1\n", b"2\n"]


def test_an_error_of_several_lines_is_told_in_one() -> None:
    def read(_: object) -> Iterator[int]:
        raise ValueError("a\n  b")
        yield 1

    with pytest.raises(BrokenShard, match="ValueError: a b") as caught:
        WindowReader(["x"], read).window(Place((0,)), 1)
    assert "\n" not in str(caught.value)


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
