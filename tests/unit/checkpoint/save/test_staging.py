"""The image of a file, the copies into it, what optimizers wait for; and how a file is written."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import crc32c
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import elastic_runtime as elastic
from elastic_runtime.checkpoint.format.manifest import CheckpointId, FileRecord
from elastic_runtime.checkpoint.save import file_writer, staging
from elastic_runtime.checkpoint.save.file_writer import WRITE_SIZE, section, with_parts, write_file
from elastic_runtime.checkpoint.save.staging import (
    Image,
    PartBytes,
    PlainCopies,
    describe,
    matches,
    of_tensor,
)
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage, LocalWriter
from elastic_runtime.errors import CheckpointError
from tests.trained import cut_off
from tests.unit.checkpoint.states import state_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TENSORS = [
    torch.arange(6, dtype=torch.float64).view(2, 3),
    torch.tensor(3.5),
    torch.zeros(0, 3),
    torch.randn(4, 3).t(),
    torch.randn(5, dtype=torch.complex64).conj(),
    torch.ones(7, dtype=torch.bfloat16),
    torch.arange(1000),
]


def contents(sources: Any) -> bytes:
    return b"".join(bytes(view) for source in sources for view in source.views)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_image_holds_what_would_be_written_without_one(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_WORTH_THREADS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    image = Image([describe(str(n), t) for n, t in enumerate(TENSORS)], PlainCopies())
    image.warm()
    for factor in (1, 2):  # it is used again
        tensors = [tensor * factor for tensor in TENSORS]
        image.stage(tensors, lambda tensor: False)
        found = list(image.sources())
        expected = [of_tensor(tensor) for tensor in tensors]
        assert contents(found) == contents(expected)
        assert [source.data for source in found] == [source.data for source in expected]
        assert image.size == sum(source.size for source in expected)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        TwoTensor(torch.eye(3), torch.eye(3)),
    ],
)
def test_tensors_without_plain_bytes_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match=r"model\.w is a torch\.\w+ \w+ on"):
        describe("model.w", tensor)


def test_memory_that_was_given_back_is_not_read() -> None:
    tensor = torch.ones(3)
    item = describe("model.w", tensor)
    assert matches(item, "model.w", tensor)
    tensor.untyped_storage().resize_(0)
    assert not matches(item, "model.w", tensor)
    with pytest.raises(CheckpointError, match="no plain bytes"):
        describe("model.w", tensor)


class LateCopies:
    """Copies as a GPU does: what may wait is copied at the last moment."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.release = threading.Event()
        self._due: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy(self, places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        self.log.append(f"{len(tensors)} at once")
        PlainCopies().copy(places, tensors)

    def copy_late(self, places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        self.log.append(f"{len(tensors)} late")
        self._due = list(zip(places, tensors, strict=True))

    def wait_for_copies(self) -> None:
        for place, tensor in self._due:
            place.copy_(tensor)
        self._due = []

    def wait(self) -> None:
        assert self.release.wait(60)


def test_optimizers_wait_for_the_copies_and_nothing_else_does(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = nn.Linear(3, 3)  # updated by hand: no optimizer knows of it
    copies = LateCopies()

    def train() -> None:
        optim.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optim.step()

    train()
    state = state_in(tmp_path, {"model": model, "optim": optim, "average": average})
    with cut_off(state):
        state.commit()
        saver: Any = state._saver
        saver._executor._memory._make_copies = lambda tensors: copies
        state.save()
        expected = {k: v.clone() for k, v in model.state_dict().items()}
        momentum = [optim.state[p]["momentum_buffer"].clone() for p in model.parameters()]
        # 4 parameters and their momentum may wait; 3 statistics and the average may not.
        assert copies.log == ["5 at once", "8 late"]
        train()
        with torch.no_grad():
            average.weight.zero_()
        copies.release.set()
        saver.wait()
    assert not torch.equal(model.state_dict()["0.weight"], expected["0.weight"])

    assert elastic.load(tmp_path, state) == 1
    assert all(torch.equal(v, expected[k]) for k, v in model.state_dict().items())
    found = [optim.state[p]["momentum_buffer"] for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(found, momentum, strict=True))
    assert average.weight.abs().sum() > 0


# A file is written in large batches, with a checksum for each part and one for all


WHICH = CheckpointId(1, 2)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    made = LocalStorage(tmp_path)
    assert made.create(WHICH)
    return made


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many bytes each write has had, and in how many buffers."""
    found, write = list[tuple[int, int]](), LocalWriter.write

    def noted(out: LocalWriter, buffers: Any) -> None:
        found.append((sum(one.nbytes for one in buffers), len(buffers)))
        write(out, buffers)

    monkeypatch.setattr(LocalWriter, "write", noted)
    return found


def written(storage: LocalStorage, parts: list[list[bytes]], *, alone: bool) -> FileRecord:
    sources = [PartBytes(tuple(map(memoryview, views)), len(views) - 1) for views in parts]
    size = sum(len(view) for views in parts for view in views)
    return write_file(storage, WHICH, "it", size, sources, alone=alone)


@pytest.mark.parametrize("alone", [False, True])
def test_parts_are_recorded_with_their_places_and_checksums(
    storage: LocalStorage, writes: list[tuple[int, int]], alone: bool
) -> None:
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
    assert max(size for size, _ in writes) == WRITE_SIZE


def test_small_parts_share_a_write_as_far_as_the_kernel_takes_them(
    storage: LocalStorage, writes: list[tuple[int, int]]
) -> None:
    count = file_writer._MOST_VIEWS + 10
    record = written(storage, [[b"x"]] * count, alone=False)
    assert [buffers for _, buffers in writes] == [file_writer._MOST_VIEWS, 10]
    assert len(record.parts) == count


def test_a_file_that_is_not_wanted_any_more_is_given_up(
    storage: LocalStorage, writes: list[tuple[int, int]]
) -> None:
    def stop(count: int) -> None:
        raise KeyError(count)

    source = PartBytes((memoryview(bytes(10)),))
    with pytest.raises(KeyError, match="10"):
        write_file(storage, WHICH, "it", 10, [source], alone=False, advance=stop)
    assert writes == []


def test_a_record_travels_with_its_parts(storage: LocalStorage) -> None:
    record = written(storage, [[b"head", b"raw"], [b"more"]], alone=False)
    again = with_parts(section(record))
    assert (again.name, again.bytes, again.crc32c) == (record.name, record.bytes, record.crc32c)
    assert tuple(again.parts) == record.parts
