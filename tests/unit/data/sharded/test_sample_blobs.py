"""Samples that other processes have read: found while they are kept, and nothing stays behind."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.data.sharded.sample_blobs import (
    BlobGone,
    BlobName,
    BlobOwner,
    BlobReader,
    LoneSamples,
    packed,
    separate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps() -> int:
    """How many blobs this process has in its memory."""
    return Path("/proc/self/maps").read_text().count("memfd:elastic-samples")


_owner = BlobOwner()


def _keep(samples: Any, age: tuple[int, int]) -> BlobName:
    return _owner.keep(samples, age)


def _drop_before(age: tuple[int, int]) -> int:
    _owner.drop_before(age)
    return descriptors()


def _open_file(content: bytes) -> int:
    file = os.memfd_create("another")
    os.write(file, content)
    return file


class Other:
    """Another process with blobs."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self.process = pool.submit(os.getpid).result()

    def keep(self, samples: Any, age: tuple[int, int] = (0, 0)) -> BlobName:
        name = self._pool.submit(_keep, samples, age).result()
        assert name.process == self.process
        return name

    def drop_before(self, age: tuple[int, int]) -> int:
        """How many descriptors it has then."""
        return self._pool.submit(_drop_before, age).result()

    def open_file(self, content: bytes) -> int:
        """Another file takes the lowest number that is free."""
        return self._pool.submit(_open_file, content).result()


@pytest.fixture
def other() -> Iterator[Other]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        yield Other(pool)


def test_several_blobs_of_several_processes_are_not_mixed_up(other: Other) -> None:
    owner, reader = BlobOwner(), BlobReader()
    names = {
        (place, n): keep([f"{place}.{n}", n], (0, n))
        for n in range(5)
        for place, keep in (("here", owner.keep), ("there", other.keep))
    }
    assert len({*names.values()}) == 10
    for (place, n), name in [*reversed(names.items()), *names.items()]:
        assert [reader.sample(name, each) for each in (0, 1)] == [f"{place}.{n}", n]
    owner.drop_before((1, 0))


@pytest.mark.parametrize("count", [0, 1, 1022, 1023, 1024, 1025, 2048, 5000])
def test_blobs_of_any_number_of_samples(other: Other, count: int) -> None:
    name, reader = other.keep([f"sample {n}" * (n % 5) for n in range(count)]), BlobReader()
    for n in range(count):
        assert reader.sample(name, n) == f"sample {n}" * (n % 5)


def test_samples_of_any_kind_and_size_are_found_in_any_order(other: Other) -> None:
    samples = [{"__key__": "a", "jpg": bytes(range(256))}, b"", None, os.urandom(3 << 20)]
    samples += [3, "é", [1.5, (2, "x")], os.urandom((3 << 20) + 1), {}]
    name, reader = other.keep(samples), BlobReader()
    for n in (7, 0, 3, 6, 1, 8, 5, 2, 4, 0, 7):
        assert reader.sample(name, n) == samples[n]


@given(
    lengths=st.lists(st.integers(0, 50), max_size=12),
    steps=st.lists(st.integers(1, 200), min_size=1, max_size=8),
)
def test_what_the_system_writes_in_parts_is_whole(lengths: list[int], steps: list[int]) -> None:
    """It may write less than it was told to, above all of much."""
    parts = iter(steps * 10_000)

    def some(file: int, pieces: list[bytes]) -> int:
        return os.write(file, b"".join(pieces)[: next(parts)])

    owner, reader = BlobOwner(), BlobReader()
    samples = [bytes([65 + n]) * length for n, length in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", some)
        name = owner.keep(samples, (0, 0))
    assert [reader.sample(name, n) for n in range(len(samples))] == samples
    for each in (reader, owner):
        each.drop_before((1, 0))


AGES = [(0, 0), (0, 9), (0, 10), (1, 0), (1, 1)]


@pytest.mark.parametrize("kept", range(6))
def test_an_owner_drops_what_is_older_and_nothing_else(other: Other, kept: int) -> None:
    names = [other.keep([age], age) for age in AGES]
    before = other.drop_before((0, 0))
    left = other.drop_before(AGES[kept] if kept < 5 else (2, 0))
    assert left == before - kept
    for n, name in enumerate(names):
        if n < kept:
            with pytest.raises(BlobGone):
                BlobReader().sample(name, 0)
        else:
            assert BlobReader().sample(name, 0) == AGES[n]


def test_what_was_dropped_is_not_taken_for_the_next_one(other: Other) -> None:
    first = other.keep(["first"])
    other.drop_before((0, 1))
    second = other.keep(["second"])
    assert second.file == first.file
    with pytest.raises(BlobGone):
        BlobReader().sample(first, 0)
    assert BlobReader().sample(second, 0) == "second"


@pytest.mark.parametrize("content", [b"", b"12345678", b"12345678" * 10, bytes(1001)])
def test_what_was_dropped_is_not_taken_for_another_file(other: Other, content: bytes) -> None:
    name = other.keep(["first"])
    other.drop_before((0, 1))
    assert other.open_file(content) == name.file
    before = descriptors()
    with pytest.raises(BlobGone):
        BlobReader().sample(name, 0)
    assert descriptors() == before


def test_with_its_process_a_blob_is_gone(other: Other) -> None:
    name, seen = other.keep(["a", "b"]), other.keep(["c", "d"])
    reader = BlobReader()
    assert reader.sample(seen, 0) == "c"
    os.kill(other.process, signal.SIGKILL)
    with pytest.raises(BrokenProcessPool):
        other.keep([])
    with pytest.raises(BlobGone):
        reader.sample(name, 0)
    assert reader.sample(seen, 1) == "d"


def test_what_a_reader_has_begun_it_reads_to_the_end(other: Other) -> None:
    name, reader = other.keep(["a", "b"]), BlobReader()
    assert reader.sample(name, 0) == "a"
    other.drop_before((1, 0))
    assert reader.sample(name, 1) == "b"
    reader.drop_before((0, 0))
    assert reader.sample(name, 1) == "b"
    reader.drop_before((0, 1))
    with pytest.raises(BlobGone):
        reader.sample(name, 1)


def test_a_reader_holds_what_is_not_dropped_and_nothing_afterwards(other: Other) -> None:
    before, reader = (maps(), descriptors()), BlobReader()
    names = [other.keep([age, age], age) for age in AGES]
    for n, name in enumerate(names):
        for number in (0, 1):
            assert reader.sample(name, number) == AGES[n]
        assert maps() == before[0] + n + 1
    for n, age in enumerate(AGES):
        reader.drop_before(age)
        assert maps() == before[0] + 5 - n
    reader.drop_before((9, 0))
    assert (maps(), descriptors()) == before
    # They are still there, for those who ask again.
    assert reader.sample(names[0], 0) == AGES[0]


def test_a_sample_that_cannot_be_pickled_leaves_nothing() -> None:
    before, owner = descriptors(), BlobOwner()
    with pytest.raises(TypeError, match="pickle"):
        owner.keep([1, threading.Lock()], (0, 0))
    assert descriptors() == before


def test_a_blob_that_cannot_be_written_leaves_nothing() -> None:
    def check() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        before, owner = descriptors(), BlobOwner()
        with pytest.raises(OSError, match="too large"):
            owner.keep([b"x" * 9000] * 2, (0, 0))
        assert descriptors() == before
        # What has room is kept, and known by a name of its own.
        name = owner.keep([b"x" * 9000], (0, 0))
        assert BlobReader().sample(name, 0) == b"x" * 9000

    process = multiprocessing.get_context("fork").Process(target=check)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_program_that_an_owner_starts_has_no_blob() -> None:
    owner = BlobOwner()
    name = owner.keep([1], (0, 0))
    assert not os.get_inheritable(name.file)
    owner.drop_before((1, 0))


def test_a_lone_process_keeps_samples_as_they_are_and_drops_old_ones() -> None:
    lone = LoneSamples()
    old, new = lone.keep(["a", "b"], (0, 7)), lone.keep([[1]], (1, 0))
    assert [lone.sample(old, 1), lone.sample(new, 0)] == ["b", [1]]
    lone.drop_before((1, 0))
    assert lone.sample(new, 0) == [1]
    for gone in (old, new._replace(process=1)):  # of one that has ended, and was replaced
        with pytest.raises(BlobGone):
            lone.sample(gone, 0)


@pytest.mark.parametrize(
    "sample",
    ["a", 1, b"x", None, (1, [2]), [1, [2]], {"a": 1, "b": b"x"}, {"a": [1], "b": {"c": 2}}],
)
@pytest.mark.parametrize("lone", [False, True])
def test_what_is_done_to_a_separate_sample_is_not_done_to_it(sample: Any, lone: bool) -> None:
    before, kept = repr(sample), LoneSamples()
    name = kept.keep([sample], (0, 0))
    for _ in range(2):
        other = kept.sample(name, 0) if lone else separate(sample)
        assert other == sample
        if isinstance(other, dict):
            for value in other.values():
                if isinstance(value, list | dict):
                    value.clear()
            other.clear()
        elif isinstance(other, list | tuple):
            other[1].clear()
    assert repr(sample) == before


@pytest.mark.parametrize("form", [torch.Tensor, np.ndarray], ids=["torch", "numpy"])
@pytest.mark.parametrize("lone", [False, True])
def test_a_part_of_something_large_is_copied_alone(form: type, lone: bool) -> None:
    """As of a shard that is one tensor: each sample would be all of it."""
    whole: Any = torch.arange(1000.0)
    whole = whole if form is torch.Tensor else whole.numpy()
    part, kept = {"x": (whole[10:12], 3), "f": len}, LoneSamples()
    assert len(packed(part)) < 1000
    name = kept.keep([part], (0, 0))
    for _ in range(2):
        other = kept.sample(name, 0) if lone else separate(part)
        assert other["x"][0].tolist() == [10.0, 11.0]
        assert type(other["x"][0]) is form
        other["x"][0][0] = 5.0
        storage = torch.as_tensor(other["x"][0]).untyped_storage()
        assert storage.nbytes() <= 16
    assert whole[10] == 10.0


def test_what_cannot_be_packed_is_copied_as_far_as_that_goes() -> None:
    kept, number = LoneSamples(), torch.ones(1)
    with Path(__file__).open() as file:
        sample = {"f": lambda: 1, "file": file, "number": number}
        name = kept.keep([sample], (0, 0))
        for other in (separate(sample), kept.sample(name, 0)):
            other["number"] *= 2
            assert other["f"]() == 1
            assert other["file"] is file
    assert number == 1


class _Pair(NamedTuple):
    part: torch.Tensor
    label: int


def test_a_part_of_something_large_within_an_object_is_copied_alone() -> None:
    whole = torch.arange(1000.0)
    other = separate([_Pair(whole[10:12], 3)])
    assert other[0] == _Pair(other[0].part, 3)
    assert other[0].part.untyped_storage().nbytes() == 8
    other[0].part[0] = 5.0
    assert whole[10] == 10.0


def test_what_is_smaller_than_it_looks_is_packed_as_it_is() -> None:
    assert len(packed(torch.ones(1).expand(10_000))) < 1000


def test_an_object_of_a_class_within_a_function_is_copied() -> None:
    """Pickle does not find such a class."""

    class Sample:
        def __init__(self) -> None:
            self.words = ["a"]

    sample = Sample()
    separate(sample).words.clear()
    assert sample.words == ["a"]


class _Refuses:
    """Like a picture that is opened when it is needed, and is damaged."""

    def __getstate__(self) -> Any:
        raise OSError("truncated")


def test_a_sample_that_refuses_to_be_copied_is_still_given() -> None:
    """What reads it may know what to do."""
    sample, kept = _Refuses(), LoneSamples()
    assert separate(sample) is sample
    assert kept.sample(kept.keep([sample], (0, 0)), 0) is sample
