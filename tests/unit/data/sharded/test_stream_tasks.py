"""Tasks of a stream's loader: which comes next, what it gives, and what an iteration holds."""

from __future__ import annotations

import itertools
import json
import traceback
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data._utils.pin_memory import pin_memory

import elastic_runtime as elastic
from elastic_runtime.data.sample_seeds import Moment
from elastic_runtime.data.sharded import stream_tasks
from elastic_runtime.data.sharded.lot_plan import Place, WindowFound
from elastic_runtime.data.sharded.stream_steps import StreamWindows, window_keys
from elastic_runtime.data.sharded.stream_tasks import (
    BatchTask,
    HeldWindow,
    ReadFailure,
    ReadResult,
    ReadTask,
    ShardWork,
    TaskLoader,
    TaskQueue,
    WindowKey,
)
from elastic_runtime.data.sharded.window_reader import Run
from elastic_runtime.errors import BrokenShard
from tests.unit.data.play import world_of
from tests.unit.data.sharded.ranks import letters, write_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from elastic_runtime.data.sharded.sharded_stream import ShardedStream

NOW = Moment(seed=5, epoch=2)


def windows(count: int, lot: int = 0) -> list[WindowKey]:
    """Those of a lot of so many streams."""
    return [WindowKey(0, lot, n, Place((n,)), 10) for n in range(count)]


def step(ticket: int) -> BatchTask:
    """One without samples."""
    return BatchTask(ticket, NOW, [], [], (0, 0))


def add_batches(queue: TaskQueue, tickets: Iterable[int]) -> None:
    """Adds steps by their tickets."""
    for ticket in tickets:
        queue.batch(lambda _, ticket=ticket: step(ticket))  # type: ignore[misc]


def taken(queue: TaskQueue, count: int) -> list[ReadTask | BatchTask | None]:
    """The next tasks."""
    return list(islice(queue, count))


def short(tasks: list[ReadTask | BatchTask | None]) -> list[Any]:
    """Tickets of steps, streams of windows."""
    return [
        [key.stream for key in task.windows] if isinstance(task, ReadTask) else task and task.ticket
        for task in tasks
    ]


@pytest.mark.parametrize(
    ("processes", "reads", "steps", "added", "expected"),
    [
        # 0: in the process itself.
        (0, 3, 6, 8, [0, 1, [0], 2, 3, [1], 4, 5, [2], 6, 7, None]),
        (1, 7, 3, 4, [0, [0, 1, 2], 1, [3, 4, 5], 2, [6], 3]),  # of few steps: several together
        (2, 5, 0, 0, [[0, 2, 4], [1, 3], None, None]),  # at once
    ],
)
def test_reads_lie_between_the_steps_that_they_have_time_for(
    processes: int, reads: int, steps: int, added: int, expected: list[Any]
) -> None:
    queue = TaskQueue(processes)
    queue.read(windows(reads), steps)
    add_batches(queue, range(added))
    assert short(taken(queue, len(expected))) == expected


def test_a_step_is_made_when_it_is_its_turn() -> None:
    made: list[int] = []

    def task(ticket: int) -> BatchTask:
        made.append(ticket)
        return step(ticket)

    queue = TaskQueue(1)
    for ticket in range(3):
        queue.batch(lambda _, ticket=ticket: task(ticket))  # type: ignore[misc]
    assert made == []
    assert short(taken(queue, 2)) == made == [0, 1]


def test_a_read_says_what_is_not_needed_any_more() -> None:
    queue = TaskQueue(1)
    queue.keep_from = (3, 4)
    queue.read(windows(1), 0)
    queue.keep_from = (3, 5)
    queue.read(windows(1, lot=1), 0)
    assert taken(queue, 2) == [ReadTask(windows(1), (3, 4)), ReadTask(windows(1, lot=1), (3, 5))]


@given(
    processes=st.integers(1, 5),
    added=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 20), st.integers(0, 20), st.integers(0, 30)),
        max_size=6,
    ),
)
def test_each_process_gets_the_windows_of_its_streams_and_no_task_is_lost(
    processes: int, added: list[tuple[int, int, int, int]]
) -> None:
    """Whatever is added while some tasks are taken: streams, steps for them, steps, and takes."""
    queue = TaskQueue(processes)
    tasks: list[ReadTask | BatchTask | None] = []
    asked: list[WindowKey] = []
    tickets = 0
    for lot, (streams, pace, steps, takes) in enumerate(added):
        asked += windows(streams, lot)
        queue.read(windows(streams, lot), pace)
        add_batches(queue, range(tickets, tickets + steps))
        tickets += steps
        tasks += taken(queue, takes)
    tasks += taken(queue, processes * (len(asked) + tickets + 1))
    assert tasks[-processes:] == [None] * processes
    assert [task.ticket for task in tasks if isinstance(task, BatchTask)] == list(range(tickets))
    for process in range(processes):
        reads = [task for task in tasks[process::processes] if isinstance(task, ReadTask)]
        assert all(task.windows for task in reads)
        assert [key for task in reads for key in task.windows] == [
            key for key in asked if key.stream % processes == process
        ]


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40))
def test_windows_are_read_in_the_time_that_there_is(
    processes: int, streams: int, steps: int
) -> None:
    queue = TaskQueue(processes)
    queue.read(windows(streams), steps)
    add_batches(queue, range(10 * steps + 20))
    # Rounded up to a step of each process, and one more for what a float is short of.
    tasks = taken(queue, 2 * (steps + 2 * processes))
    read = Counter(key for task in tasks if isinstance(task, ReadTask) for key in task.windows)
    assert read == Counter(windows(streams))
    # No process is kept busy by several of them one after the other.
    for process in range(processes):
        kinds = [isinstance(task, ReadTask) for task in tasks[process::processes]]
        assert not any(a and b for a, b in pairwise(kinds))


def test_while_windows_are_waited_for_no_step_is_made() -> None:
    queue = TaskQueue(2)
    queue.read(windows(4), batches=4)
    add_batches(queue, range(3))
    queue.only_reads = True
    assert short(taken(queue, 6)) == [[0], [1], [2], [3], None, None]
    queue.only_reads = False
    assert short(taken(queue, 4)) == [0, 1, 2, None]


def test_reads_that_were_made_at_once_do_not_put_off_later_ones() -> None:
    queue = TaskQueue(1)
    queue.read(windows(5), batches=5)
    add_batches(queue, range(2))
    queue.only_reads = True
    taken(queue, 3)
    queue.only_reads = False
    assert short(taken(queue, 4)) == [0, [3], 1, [4]]


def test_forgotten_tasks_do_not_come() -> None:
    queue = TaskQueue(2)
    queue.read(windows(2), 10)
    add_batches(queue, range(5))
    queue.clear()
    assert taken(queue, 4) == [None] * 4


def test_the_first_process_begins_again_where_others_take_the_tasks() -> None:
    queue = TaskQueue(3)
    taken(queue, 1)
    queue.begin_turns()
    queue.read(windows(3), batches=0)
    assert short(taken(queue, 3)) == [[0], [1], [2]]


class Shards:
    """Reads shards that are lists; notes which."""

    def __init__(self) -> None:
        self.opened: list[Any] = []

    def __call__(self, shard: list[Any]) -> Iterable[Any]:
        self.opened.append(shard)
        if "broken" in shard:
            raise RuntimeError("no such thing")
        if "unreachable" in shard:
            raise TimeoutError("no answer")
        return shard


def work(*shards: list[Any], decode: Any = None, collate: Any = None) -> ShardWork:
    """That of this process."""
    return ShardWork(shards, Shards(), decode, collate)


def test_a_read_gives_the_windows_with_their_samples() -> None:
    keys = [WindowKey(0, 0, 0, Place((1, 0)), 3), WindowKey(0, 0, 1, Place((2,), 1, 1), 5)]
    given = work([10, 11], [20, 21], [30, 31, 32, 33])[ReadTask(keys, (0, 0))].windows
    assert given == [
        (keys[0], HeldWindow([20, 21, 10], None, 0, [Run(1, 2), Run(0, 1)], WindowFound(3, 1, 1))),
        (keys[1], HeldWindow([32, 33], None, 0, [Run(2, 2)], WindowFound(2, 0, None))),
    ]
    window = given[0][1]
    assert [window.sample(n) for n in range(3)] == [20, 21, 10]
    assert [window.shard_of(n) for n in range(3)] == [1, 1, 0]
    with pytest.raises(IndexError):
        window.shard_of(3)


def test_a_sample_in_a_blob_is_known_by_its_number_there() -> None:
    window: Any = HeldWindow([], "blob", 4, [Run(3, 2)], WindowFound(2, 0, None))  # type: ignore[arg-type]
    assert (window.sample(1), window.shard_of(1)) == (("blob", 5), 3)


def test_a_window_that_cannot_be_read_does_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    keys = windows(4)
    given = dict(work(["broken"], [1], ["unreachable"], [2])[ReadTask(keys, (0, 0))].windows)
    assert [given[keys[n]].samples for n in (1, 3)] == [[1], [2]]
    broken, unreachable = given[keys[0]], given[keys[2]]
    assert isinstance(broken, ReadFailure)
    assert broken.final
    assert "shard number 0 cannot be read: RuntimeError: no such thing" in broken.text
    assert isinstance(unreachable, ReadFailure)
    assert not unreachable.final
    assert "TimeoutError: no answer" in unreachable.text


def test_samples_are_decoded_one_by_one_and_made_a_batch() -> None:
    given = work([1], decode=str, collate="+".join)[BatchTask(8, NOW, [3, 4], [0, 0], (0, 0))]
    assert given == (8, "3+4")


def test_samples_have_random_numbers_of_their_moment() -> None:
    def noise(sample: int) -> int:
        return int(elastic.sample_rng(sample).initial_seed())

    made = work([1], decode=noise, collate=list)
    for moment in (NOW, Moment(6, 0)):
        expected = elastic.sample_rng(3, seed=moment.seed, epoch=moment.epoch).initial_seed()
        assert made[BatchTask(1, moment, [3], [0], (0, 0))] == (1, [expected])


@pytest.mark.parametrize(("shard", "name"), [("a/b.jsonl", "a/b.jsonl"), ([1], "number 1")])
def test_a_sample_that_cannot_be_decoded_names_its_shard(shard: Any, name: str) -> None:
    made = ShardWork(["c", shard], Shards(), json.loads, None)
    ticket, why = made[BatchTask(3, NOW, [b"1", b"{"], [0, 1], (0, 0))]
    assert (ticket, why.final) == (3, True)
    assert f"a sample of the shard {name} cannot be decoded: " in why.text
    assert why.text.endswith(r": b'{'")


def test_a_lone_process_forgets_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = SimpleNamespace(num_workers=1)
    monkeypatch.setattr(stream_tasks, "get_worker_info", lambda: lone)
    made = ShardWork([[1, 2, 3, 4]], Shards(), None, None)
    key, kept = WindowKey(0, 0, 0, Place((0,)), 1), []
    for lot in range(4):
        ((_, window),) = made[ReadTask([replace(key, lot=lot)], (0, lot))].windows
        kept.append(BatchTask(0, NOW, [window.sample(0)], [0], (0, lot)))
        assert made[kept[-1]][1].tolist() == [1]
    for task in kept[:-1]:
        assert isinstance(made[task][1], ReadFailure)
    assert made[kept[-1]][1].tolist() == [1]


def test_a_loader_gives_the_results_of_its_tasks_and_is_never_at_its_end() -> None:
    loader = TaskLoader(work([1, 2]), {})
    assert loader.result() is None
    loader.queue.read(windows(1), 0)
    ((key, window),) = loader.result().windows
    assert (key, window.samples) == (windows(1)[0], [1, 2])
    loader.queue.batch(lambda _: BatchTask(4, NOW, window.samples, [0, 0], (0, 0)))
    ticket, batch = loader.result()
    assert (ticket, batch.tolist()) == (4, [1, 2])
    loader.queue.read(windows(1), 0)
    loader.drop()
    assert loader.result() is None
    assert loader.result() is None


# ------------------------------------------------------------ as a stream has it


@pytest.mark.parametrize("processes", [0, 1])
def test_a_mistake_in_decode_has_its_traceback_and_the_sample(processes: int) -> None:
    def decode(letter: str) -> int:
        return {"a": 1}[letter]

    stream = elastic.ShardedStream(
        ["a", "axa"], read=letters, decode=decode, global_batch_size=4, num_workers=processes
    )
    with pytest.raises(KeyError) as raised:
        list(stream.steps(epochs=1))
    told = "".join(traceback.format_exception(raised.value))
    assert "in decode" in told
    assert "in a sample of the shard axa: 'x'" in told


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_decode_may_change_what_it_is_given(processes: int) -> None:
    """A step that was not committed is made of the same samples again in the next world."""

    def decode(sample: dict[str, Any]) -> float:
        sample["pixels"] *= 2
        return float(sample.pop("pixels").sum()) + len(sample.pop("words").pop())

    stream = elastic.ShardedStream(
        [3, 4], read=pictures, decode=decode, global_batch_size=2, num_workers=processes
    )
    position = stream.state_dict()
    for _ in range(3):
        stream.enter(world_of(0, 1))
        pieces = [piece.tolist() for step in itertools.islice(stream.steps(), 2) for piece in step]
        assert pieces == [[1.0, 1.0], [5.0, 5.0]]
        stream.load_state_dict(position)


def test_collate_may_change_what_it_is_given() -> None:
    def collate(samples: list[dict[str, Any]]) -> int:
        return len([sample.pop("words") for sample in samples])

    stream = elastic.ShardedStream([3, 3], read=pictures, collate_fn=collate, global_batch_size=2)
    for _ in range(2):
        stream.enter(world_of(0, 1))
        assert list(stream) == [2, 2, 2]


def pictures(shard: int) -> Iterator[dict[str, Any]]:
    """Some of a shard: nested, and such as can be changed in place."""
    for number in range(shard):
        yield {"pixels": torch.full((2,), float(number)), "words": ["a", "b"]}


def test_samples_that_cannot_be_passed_on_are_one_clear_line() -> None:
    def functions(shard: str) -> Iterator[Any]:
        for letter in shard:
            yield lambda letter=letter: letter

    def call(function: Callable[[], str]) -> str:
        return function()

    settings: Any = {"read": functions, "decode": call, "global_batch_size": 4}
    for processes in (0, 1):
        stream = elastic.ShardedStream(["ab", "cd"], **settings, num_workers=processes)
        assert list(stream) == [["a", "b", "c", "d"]]
    stream = elastic.ShardedStream(["ab", "cd"], **settings, num_workers=2)
    words = r"^what read= gives cannot be passed .* Can't pickle .*, or take num_workers=1$"
    with pytest.raises(BrokenShard, match=words):
        next(iter(stream))


# What an iteration holds, asks for, and lets go


def held(stream: ShardedStream) -> set[tuple[int, int]]:
    """The lots of which windows are kept."""
    return {(key.epoch, key.lot) for key in stream._windows._held}


def test_windows_are_kept_until_their_lot_is_committed_and_no_longer(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [100] * 6), global_batch_size=4)
    lots = set()
    for _ in stream.steps(epochs=1):
        lots.add(stream._committed.lot.number)
        assert (0, stream._committed.lot.number) in held(stream)
        assert min(held(stream)) >= (0, stream._committed.lot.number)
        assert len(held(stream)) <= 3
    assert len(lots) > 5


def test_a_window_that_was_asked_for_is_read_once() -> None:
    lists, shards = [[n] * 10 for n in range(4)], Shards()
    windows = StreamWindows(TaskLoader(ShardWork(lists, shards, None, None), {}))
    keys = window_keys(elastic.ShardedStream(lists, read=list, global_batch_size=4)._committed.lot)
    windows.ask(keys, 5)
    windows.get(keys[:2])
    windows.get(keys)
    assert sorted(shards.opened) == lists


def test_a_batch_that_nobody_waits_for_any_more_is_dropped(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [50] * 4)
    stream = elastic.ShardedStream(shards, global_batch_size=4, num_workers=1)
    for _ in range(10):
        assert len(list(itertools.islice(stream.steps(), 3))) == 3
        assert len(stream._windows._batches) < 20
    stream._windows.restart(stream._committed.lot)
    assert not stream._windows._batches


def test_pinning_memory_leaves_windows_as_they_are(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [10] * 4), global_batch_size=4)
    keys = window_keys(stream._committed.lot)
    stream._windows.get(keys)
    result = ReadResult(list(stream._windows._held.items()))
    assert pin_memory(result) is result
