"""What an iteration holds, asks for, and lets go."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from torch.utils.data._utils.pin_memory import pin_memory

import elastic_runtime as elastic
from elastic_runtime.data.sharded.stream_steps import StreamWindows, window_keys
from elastic_runtime.data.sharded.stream_tasks import ReadResult, ShardWork, TaskLoader
from tests.unit.data.sharded.ranks import write_shards

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.data.sharded.sharded_stream import ShardedStream


def held(stream: ShardedStream) -> set[tuple[int, int]]:
    """The lots of which windows are kept."""
    return {(key.epoch, key.lot) for key in stream._windows._held}


def test_windows_are_kept_until_their_lot_is_committed_and_no_longer(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [100] * 6), batch_size=4)
    lots = set()
    for _ in stream:
        lots.add(stream._committed.lot.number)
        assert (0, stream._committed.lot.number) in held(stream)
        assert min(held(stream)) >= (0, stream._committed.lot.number)
        assert len(held(stream)) <= 3
        stream.commit()
    assert len(lots) > 5


def test_a_window_that_was_asked_for_is_read_once(tmp_path: Path) -> None:
    work = ShardWork(write_shards(tmp_path, [10] * 4), "jsonl", None, None)
    read: list[Any] = []
    original = work._windows

    def counting(task: Any) -> Any:
        read.extend(task.windows)
        return original(task)

    work._windows = counting  # type: ignore[method-assign]
    windows = StreamWindows(TaskLoader(work, {}))
    lot = elastic.ShardedStream(write_shards(tmp_path, [10] * 4), batch_size=4)._committed.lot
    keys = window_keys(lot)
    windows.ask(keys, 5)
    windows.get(keys[:2])
    windows.get(keys)
    assert len(read) == len(keys)
    assert set(read) == set(keys)


def test_a_batch_that_nobody_waits_for_any_more_is_dropped(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [50] * 4), batch_size=4, num_workers=1)
    for _ in range(10):
        assert len(list(itertools.islice(stream, 3))) == 3
        assert len(stream._windows._batches) < 20
    stream._windows.forget_steps()
    assert not stream._windows._batches


def test_pinning_memory_leaves_windows_as_they_are(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [10] * 4), batch_size=4)
    keys = window_keys(stream._committed.lot)
    stream._windows.get(keys)
    result = ReadResult(list(stream._windows._held.items()))
    assert pin_memory(result) is result
