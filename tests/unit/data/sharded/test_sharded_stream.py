"""What users say about their shards; each sample once an epoch, in whatever worlds; positions."""

from __future__ import annotations

import collections
import gc
import itertools
import json
import os
import pickle
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import psutil
import pytest
import torch
from datasets.distributed import split_dataset_by_node

import elastic_runtime as elastic
from elastic_runtime.data.sharded import sharded_stream
from elastic_runtime.data.sharded.shard_list import ShardList
from elastic_runtime.errors import BrokenShard, ElasticError, UsageError
from tests.unit.data.play import world_of
from tests.unit.data.sharded.ranks import GlobalStep, ThreadPeers, letters, live, write_shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.data.sharded.sharded_stream import ShardedStream

pytestmark = pytest.mark.timeout(120)


def hugging_face(number: int, size: int = 10) -> Any:
    """0, 1, 2, … in so many shards, of Hugging Face."""
    return datasets.Dataset.from_dict({"n": list(range(size))}).to_iterable_dataset(number)


def rows() -> Any:
    """A data set of Hugging Face of several lots, which has a position of its own."""
    return hugging_face(7, 600).map(_twice)


def _twice(row: dict[str, int]) -> dict[str, int]:
    return {"n": row["n"] * 2}


def alone(shards: list[str], epochs: int, **settings: Any) -> list[tuple[int, list[int]]]:
    """The steps of an undisturbed run with one rank."""
    stream = elastic.ShardedStream(shards, **settings)
    stream.enter(world_of(0, 1))
    steps = []
    while stream.epoch < epochs:
        for batch in stream:
            steps.append((stream.epoch, sorted(batch.tolist())))
            stream.commit()
    return steps


def check(steps: list[GlobalStep], sizes: list[int], epochs: int, batch: int) -> None:
    """Each epoch has each sample once, in full batches but for the last, evenly shared out."""
    by_epoch = collections.defaultdict(list)
    for step in steps:
        by_epoch[step.epoch].append(step.samples)
        lengths = [len(own) for own in step.by_rank]
        assert max(lengths) - min(lengths) <= 1
    assert sorted(by_epoch) == (list(range(epochs)) if sum(sizes) else [])
    for batches in by_epoch.values():
        assert sorted(n for each in batches for n in each) == list(range(sum(sizes)))
        assert {len(each) for each in batches[:-1]} <= {batch}


@pytest.mark.parametrize("seed", range(40))
def test_each_sample_counts_once_an_epoch_through_faults_and_resizes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four faults and more for each seed, where there are so many steps.
    draw = random.Random(seed)
    sizes = [draw.choice([0, 1, 7, draw.randint(0, 60)]) for _ in range(draw.randint(1, 25))]
    sizes.append(draw.randint(1, 30))
    batch, epochs = draw.randint(1, 12), 2
    settings: dict[str, Any] = {
        "batch_size": batch,
        "shuffle_buffer": draw.choice([0, 10, 300]),
        "streams": draw.choice([None, 1, 3, 40]),
        "seed": seed,
    }
    shards = write_shards(tmp_path, sizes)
    expected = alone(shards, epochs, **settings)
    made: list[GlobalStep] = []
    ranks: list[ShardedStream] = []
    fewest = max(1, len(expected) // 8)
    faults = 0
    while not made or len(made) < len(expected):
        world = draw.randint(1, 5)
        survivors = draw.sample(ranks, draw.randint(0, min(world, len(ranks))))
        position = json.dumps(ranks[0].state_dict()) if ranks else ""
        ranks = survivors + [
            elastic.ShardedStream(shards, **settings) for _ in range(world - len(survivors))
        ]
        draw.shuffle(ranks)
        for rank in ranks if position else []:
            rank.load_state_dict(json.loads(position))
        made += live(
            monkeypatch, ranks, draw.randint(1, fewest), epochs, ahead=draw.choice([0, 0, 1, 3])
        )
        faults += 1
    assert faults >= 4 or len(expected) < 4
    assert len({json.dumps(rank.state_dict()) for rank in ranks}) == 1
    check(made, sizes, epochs, batch)
    assert [(step.epoch, step.samples) for step in made] == expected


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_give_the_same_batches_also_after_a_break(processes: int, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [random.Random(n).randint(0, 90) for n in range(12)])
    settings: dict[str, Any] = {"batch_size": 8, "shuffle_buffer": 100}
    expected = alone(shards, 2, **settings)
    stream = elastic.ShardedStream(shards, num_workers=processes, **settings)
    made = []
    stops = iter([3, 1, 17, 2, 30])
    while stream.epoch < 2:
        stop = next(stops, 1000)
        for number, batch in enumerate(stream):
            if number == stop:
                break  # it comes again
            made.append((stream.epoch, sorted(batch.tolist())))
            stream.commit()
    assert made == expected


def test_nothing_of_the_processes_is_left_and_they_keep_few_files(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [300] * 4)
    stream = elastic.ShardedStream(shards, batch_size=4, num_workers=2)
    files, before = 0, set(psutil.Process().children())
    for _ in stream:
        stream.commit()
        for process in set(psutil.Process().children()) - before:
            blobs = [f for f in Path(f"/proc/{process.pid}/fd").iterdir() if "memfd" in _target(f)]
            files = max(files, len(blobs))
    assert 0 < files < 60  # of more than a hundred that there have been


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def test_the_scale_belongs_to_a_batch(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [6]), batch_size=4, rank=0, world=1)
    with pytest.raises(UsageError, match="loss_scale belongs to a batch"):
        _ = stream.loss_scale
    for _ in stream:
        assert stream.loss_scale == 1.0
        stream.commit()


def halfway(shards: list[str], steps: int, **settings: Any) -> dict[str, Any]:
    """The position after some steps, as a checkpoint has it."""
    stream = elastic.ShardedStream(shards, **settings)
    for _ in zip(range(steps), stream, strict=False):
        stream.commit()
    position: dict[str, Any] = json.loads(json.dumps(stream.state_dict()))
    return position


def rest(stream: ShardedStream) -> list[int]:
    """The samples up to the end of the epoch."""
    found = []
    for batch in stream:
        found += batch.tolist()
        stream.commit()
    return found


def test_a_saved_position_decides_on_seed_and_streams(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [30] * 10)
    settings: dict[str, Any] = {"batch_size": 6, "shuffle_buffer": 20}
    position = halfway(shards, 10, seed=4, **settings)
    same = elastic.ShardedStream(shards, seed=4, **settings)
    other = elastic.ShardedStream(shards, seed=5, streams=2, **settings)
    for stream in (same, other):
        stream.load_state_dict(position)
    assert rest(same) == rest(other)


def test_another_batch_counts_from_the_next_lot_on(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [100] * 10)
    stream = elastic.ShardedStream(shards, batch_size=9)
    stream.load_state_dict(halfway(shards, 10, batch_size=6))
    batches = []
    for batch in stream:
        batches.append(batch.tolist())
        stream.commit()
    assert [len(batch) for batch in batches[:6]] == [6] * 6
    assert {len(batch) for batch in batches[6:-1]} == {9}
    assert len({n for batch in batches for n in batch}) == sum(map(len, batches)) == 940


def test_other_shards_are_refused_within_an_epoch_and_taken_between_two(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [10] * 4)
    position = halfway(shards, 3, batch_size=4)
    fewer = elastic.ShardedStream(shards[:3], batch_size=4)
    with pytest.raises(UsageError, match="in the middle of epoch 0 of other shards"):
        fewer.load_state_dict(position)
    fewer.load_state_dict(halfway(shards, 10, batch_size=4))
    assert (fewer.epoch, sorted(rest(fewer))) == (1, list(range(30)))


def test_a_shard_that_has_changed_within_an_epoch_is_noticed(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [10] * 4)
    position = halfway(shards, 3, batch_size=4)
    with open(shards[1], "a") as file:
        file.write("77\n")
    stream = elastic.ShardedStream(shards, batch_size=4)
    stream.load_state_dict(position)
    with pytest.raises(UsageError, match="had 10 samples, and has 11 now"):
        next(iter(stream))


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "rank 0: the shard .*/none.jsonl cannot be read: F"),
        ("half", "a sample of the shard .*/half.jsonl cannot be decoded: "),
    ],
)
def test_a_shard_that_is_gone_or_broken_is_one_clear_line(
    processes: int, name: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "half.jsonl").write_text("1\n2\n{half")
    shards = [*write_shards(tmp_path, [10, 10]), tmp_path / f"{name}.jsonl"]
    stream = elastic.ShardedStream(shards, batch_size=4, num_workers=processes)
    with pytest.raises(BrokenShard, match=rf"^{words}.*$"):
        list(stream)


def test_any_function_may_read() -> None:
    shards = ["abc", "", "defgh"]
    stream = elastic.ShardedStream(shards, read=letters, batch_size=2, num_workers=1)
    next(iter(stream))
    stream.commit()
    again = elastic.ShardedStream(shards, read=letters, batch_size=2)
    again.load_state_dict(stream.state_dict())
    assert len([letter for batch in again for letter in batch]) == 6


@pytest.mark.parametrize(
    ("shards", "settings", "words"),
    [
        *((none, {"read": "tar"}, "no shard in the list") for none in ([], (), iter(()), range(0))),
        *(
            (odd, {"read": read}, "a list of paths or URLs")
            for odd in (7, None, b"a.tar", {"a.tar": 1}, {"a.tar", "b.tar"})
            for read in (None, "tar", list)
        ),
        (["a.tar", "b.bin"], {}, r"shard 'b\.bin' does not tell how it is to be read"),
        ([7], {}, "shard '7' does not tell"),
        (["a.tar", "b.jsonl"], {}, r"of several formats \(jsonl, tar\)"),
        ("nowhere/*.tar", {}, r"no file fits the pattern 'nowhere/\*\.tar'"),
        ("file:///nowhere/*.tar", {}, "no file fits the pattern 'file://"),
        ("nosuch://a/*.tar", {}, "cannot be looked up: ValueError: Protocol not known"),
        ("data-{000..009}.tar", {}, "braces are not expanded"),
        *((["a.tar"], {"read": read}, f"read={read!r} is not known") for read in ("csv", "", 3)),
        (["a.tar"], {"batch_size": 0}, "batch_size is a whole number"),
        (["a.tar"], {"streams": 0}, "streams is a whole number"),
        (["a.tar"], {"shuffle_buffer": -1}, "shuffle_buffer is a whole number"),
        *(
            (["a.tar"], {name: None, "num_workers": 1}, f"decides on {name} itself")
            for name in ("batch_sampler", "drop_last", "persistent_workers", "sampler", "shuffle")
        ),
        (["a.tar"], {"shuffle": True, "drop_last": False}, "decides on drop_last, shuffle itself"),
        (["a.tar"], {"shuffle": True}, "itself; remove the option; shuffle_buffer="),
        (["a.tar"], {"buffer_size": 4}, "no option buffer_size; its own are .* shuffle_buffer"),
        (["a.tar"], {"in_order": False, "num_workers": 1}, "in_order=False"),
        (["a.tar"], {"rank": 1}, "rank= and world= both"),
        (["a.tar"], {"rank": 2, "world": 2}, "no rank 2 of 2"),
        (split_dataset_by_node(hugging_face(4), 0, 2), {}, "is split over ranks"),
        *((hugging_face(1), {"read": read}, "leave out read=") for read in ("tar", list)),
        (rows().shuffle(seed=1, buffer_size=20), {}, "has a shuffle buffer"),
        (rows().shuffle(seed=1).map(_twice), {}, "has a shuffle buffer"),
    ],
)
def test_what_makes_no_sense_is_refused(shards: Any, settings: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        elastic.ShardedStream(shards, **{"batch_size": 4, **settings})


def test_options_of_a_loader_are_fine() -> None:
    options: dict[str, Any] = {"num_workers": 2, "pin_memory": True, "in_order": True, "timeout": 3}
    elastic.ShardedStream(["a.tar"], batch_size=4, **options)


def test_shards_without_a_sample_are_refused(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [0, 0]), batch_size=2)
    with pytest.raises(UsageError, match="no sample in any of the shards"):
        next(iter(stream))


def test_it_says_that_it_has_no_length() -> None:
    stream = elastic.ShardedStream(range(1), read=chr, batch_size=2)
    with pytest.raises(TypeError, match="a ShardedStream has no length"):
        len(stream)
    assert stream
    assert "1 shards, batch_size=2; epoch 0, cursor 0, rank 0 of 1" in repr(stream)


@pytest.mark.parametrize(
    ("batch", "number", "streams"), [(64, 1000, 64), (256, 100, 64), (96, 50, 48), (97, 50, 50)]
)
def test_streams_make_even_parts_of_a_batch_where_that_can_be(
    batch: int, number: int, streams: int
) -> None:
    stream = elastic.ShardedStream(range(number), read=chr, batch_size=batch)
    assert len(stream._committed.lot.places) == streams


def number_of(row: dict[str, int]) -> int:
    return row["n"]


@pytest.mark.parametrize("processes", [0, 2])
def test_what_has_a_state_goes_on_in_each_of_many_lots(processes: int) -> None:
    settings = {"batch_size": 5, "shuffle_buffer": 10, "num_workers": processes}
    seen: list[int] = []
    position: dict[str, Any] = {}
    for steps in (3, 17, 20, 1, 200):
        stream = elastic.ShardedStream(rows(), decode=number_of, **settings)
        if position:
            stream.load_state_dict(json.loads(json.dumps(position)))
        for _, batch in zip(range(steps), stream, strict=False):
            seen += batch.tolist()
            stream.commit()
        position = stream.state_dict()
    assert sorted(seen) == [2 * n for n in range(600)]
    assert position["epoch"] == 1


def test_a_state_of_something_else_is_refused() -> None:
    stream = elastic.ShardedStream(range(3), read=chr, batch_size=2)
    with pytest.raises(UsageError, match="is that of something else: it has no "):
        stream.load_state_dict(elastic.DataLoader(range(10), 2).state_dict())


def test_a_loader_around_it_is_refused() -> None:
    stream = elastic.ShardedStream(range(3), read=chr, batch_size=2)
    with pytest.raises(UsageError, match=r"is itself a loader: iterate over its steps\(\)"):
        elastic.DataLoader(stream, 8)


def test_a_stream_that_is_dropped_ends_its_processes_at_once(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    stream = elastic.ShardedStream(
        write_shards(tmp_path, [90] * 6), batch_size=4, shuffle_buffer=50, num_workers=2
    )
    for _ in itertools.islice(stream, 3):
        stream.commit()
    gc.disable()
    try:
        assert len(set(psutil.Process().children()) - before) == 2
        began = weakref.ref(stream)
        del stream, _
        # No circle of references: their ends would come in any order, and be waited for.
        assert began() is None
        assert not set(psutil.Process().children()) - before
    finally:
        gc.enable()


def test_an_iteration_from_before_a_position_was_loaded_is_void(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [50]), batch_size=4)
    first = next(iter(stream)).tolist()
    batches = iter(stream)
    assert next(batches).tolist() == first, "what is not committed comes again"
    position = stream.state_dict()
    for _ in range(4):
        stream.commit()
        next(batches)
    assert stream.cursor == 16
    stream.load_state_dict(position)
    with pytest.raises(UsageError, match="iterate over the stream anew"):
        next(batches)
    stream.commit()
    assert stream.cursor == 0


def test_what_could_not_be_read_is_tried_again_by_the_next_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    down = [True]

    def read(shard: int) -> Iterator[int]:
        if down[0]:
            raise ConnectionError("down")
        yield from range(shard * 10, shard * 10 + 10)

    stream = elastic.ShardedStream(range(8), read=read, batch_size=8)
    with pytest.raises(ElasticError, match="is not to be had at present: ConnectionError: down"):
        next(iter(stream))
    down[0] = False
    assert sorted(rest(stream)) == list(range(80))


def test_a_rank_that_reads_alone_asks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # and they are not connected
    shards = write_shards(tmp_path, [6, 3])
    assert sorted(rest(elastic.ShardedStream(shards, batch_size=4, rank=0, world=1))) == [*range(9)]
    with pytest.raises(UsageError, match="before a checkpointer or a stream is used"):
        next(iter(elastic.ShardedStream(shards, batch_size=4)))


# What users say about their shards: understood or refused, and known again


def listed(shards: Any) -> list[Any]:
    return list(ShardList.of(shards, None, None).shards)


def test_a_pattern_gives_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("b.tar", "a.tar", "c.txt", "d/e.tar", "a.tar.part", "ab.tar"):
        (tmp_path / name).touch()
    at = str(tmp_path)
    assert listed(f"{at}/*.tar") == [f"{at}/a.tar", f"{at}/ab.tar", f"{at}/b.tar"]
    assert listed(f"{at}/?.tar") == [f"{at}/a.tar", f"{at}/b.tar"]
    assert listed(f"{at}/[bc].tar") == [f"{at}/b.tar"]
    assert listed(f"{at}/**/[be].tar") == [f"{at}/b.tar", f"{at}/d/e.tar"]
    assert listed(f"file://{at}/*.tar") == [f"file://{at}/{n}.tar" for n in ("a", "ab", "b")]
    # One path or URL is taken as it is, and a list in its order.
    for one in ("not/there.tar", "s3://bucket/a.tar", "https://h/[a].tar?b", Path("a.tar")):
        assert listed(one) == [one]
    names = ["b.tar", Path("a.tar"), "s3://c/*.tgz", "b.tar"]
    for given in (names, tuple(names), iter(names)):
        assert listed(given) == names


@pytest.mark.parametrize(
    ("shards", "read", "decode", "made"),
    [
        (["a.tar", "b.tgz", "c.tar.gz"], None, None, ("tar", None)),
        (["a.pq", "b.parquet"], None, None, ("parquet", None)),
        (["a.tar"], list, None, (list, None)),
        # Only lines are parsed.
        (["a.jsonl"], None, None, ("jsonl", json.loads)),
        (["a.tar", "b.txt"], "jsonl", None, ("jsonl", json.loads)),
        (["a.jsonl"], None, bytes, ("jsonl", bytes)),
        (["a.jsonl"], list, None, (list, None)),
        ([1, ("host", 2), {"a": 3}, None], iter, None, (iter, None)),
    ],
)
def test_names_tell_how_shards_are_read_and_decoded_unless_it_is_said(
    shards: list[Any], read: Any, decode: Any, made: tuple[Any, Any]
) -> None:
    found = ShardList.of(shards, read, decode)
    assert (found.shards, found.read, found.decode) == (shards, *made)


def test_a_data_set_of_hugging_face_has_its_shards_by_number() -> None:
    made = pickle.loads(pickle.dumps(ShardList.of(hugging_face(3), None, str)))
    assert (list(made.shards), made.decode) == ([0, 1, 2], str)
    parts = [[row["n"] for row in made.read(shard)] for shard in made.shards]
    assert parts == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def identity(*shards: Any) -> str:
    return ShardList.of(shards, list, None).identity


def test_the_same_shards_have_the_same_identity() -> None:
    assert identity("a.tar", "b.tar") == identity(Path("a.tar"), "b.tar")
    assert identity(1, 2) == identity(1, 2)
    made = ShardList.of(["a.tar", "b.tar"], None, str)
    assert made.identity == identity("a.tar", "b.tar")
    # It is in checkpoints: it must not change with the version of anything.
    assert made.identity == "2-8c6748ff2fbfe54b"


def test_other_shards_have_another_identity() -> None:
    lists: list[Any] = ["ab", "ba", "a", "ac", ["ab"], "abb", [1, 2], [2, 1], "\udcff", "\udcfe"]
    assert len({identity(*names) for names in lists}) == len(lists)


def test_of_shards_without_a_name_only_the_number_counts() -> None:
    assert identity(("a",), {}) == identity(None, object())
    assert identity(None) != identity(None, None)
    three, four = (ShardList.of(hugging_face(n), None, None).identity for n in (3, 4))
    assert three == ShardList.of(hugging_face(3), None, None).identity
    assert three != four


# As the steps of a job


class Job:
    """A State as a stream sees it."""

    step, stopped, call = 0, False, 1

    def commit(self, stream: ShardedStream) -> None:
        stream.before_commit(optimized=True)
        stream.commit()
        self.step += 1


def in_state(shards: list[str], batch: int = 4) -> tuple[ShardedStream, Any]:
    stream, job = elastic.ShardedStream(shards, batch_size=batch), Job()
    stream.enter(world_of(0, 1))
    stream.belong_to(job)  # type: ignore[arg-type]
    return stream, job


def test_its_steps_are_those_of_its_iterations(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [5, 3, 2])
    expected = alone(shards, 2, batch_size=4)
    stream, job = in_state(shards)
    seen, told = [], []
    for step in stream.steps(epochs=2):
        told.append((step.number, step.pieces, step.samples, step.last_of_epoch))
        for piece in step:
            assert step.weight == 1.0
            seen.append((step.epoch, sorted(piece.tolist())))
        job.commit(stream)
    assert seen == expected
    sizes = [(4, False), (4, False), (2, True)] * 2
    assert told == [(n, 1, *one) for n, one in enumerate(sizes, 1)]
    assert (stream.epoch, stream.cursor) == (2, 0)


def test_steps_are_shared_out_with_their_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, [7])
    peers = ThreadPeers(3)
    local = threading.local()
    monkeypatch.setattr(sharded_stream, "Peers", lambda group: peers.of(local.rank))

    def work(rank: int) -> list[tuple[float, list[int]]]:
        local.rank = rank
        stream = elastic.ShardedStream(shards, batch_size=4)
        stream.enter(world_of(rank, 3))
        return [
            (step.weight, piece.tolist() if step.weight else [])
            for step in stream.steps(epochs=1)
            for piece in step
        ]

    with ThreadPoolExecutor(3) as ranks:
        for step in zip(*ranks.map(work, range(3)), strict=True):
            assert sum(weight for weight, _ in step) == pytest.approx(3)
            assert [len(own) for _, own in step] in ([2, 1, 1], [1, 1, 1])


def test_a_commit_moves_it_by_the_steps_begun(tmp_path: Path) -> None:
    stream, job = in_state(write_shards(tmp_path, [12]))
    places = []
    for number, step in enumerate(stream.steps(epochs=1), 1):
        for piece in step:
            step.backward((torch.ones((), requires_grad=True) * piece).mean())
        if number != 1:
            job.commit(stream)
        places.append((stream.epoch, stream.cursor))
    stream.commit()
    assert [*places, (stream.epoch, stream.cursor)] == [(0, 0), (0, 8), (1, 0), (1, 0)]


def test_an_epoch_ends_before_the_next_one_is_read(tmp_path: Path) -> None:
    stream, job = in_state(write_shards(tmp_path, [8]))
    for _ in stream.steps(epochs=1):
        pass
    job.commit(stream)
    assert (stream.epoch, stream.cursor) == (1, 0)
    with pytest.raises(UsageError, match="commit it before the next epoch begins"):
        for _ in stream.steps(epochs=3):
            pass


@pytest.mark.parametrize("form", ["steps", "batches"])
def test_a_step_that_is_adopted_in_the_next_world_counts(form: str, tmp_path: Path) -> None:
    """There all have finished it when a fault came; the State commits it after ``enter``."""
    stream, _ = in_state(write_shards(tmp_path, [12]))
    given = stream.steps() if form == "steps" else iter(stream)
    next(given)
    stream.enter(world_of(0, 1))
    stream.commit()
    assert (stream.epoch, stream.cursor) == (0, 4)
    with pytest.raises(UsageError, match="begun before another one"):
        next(given)


def test_an_iteration_over_batches_ends_that_over_steps(tmp_path: Path) -> None:
    stream, _ = in_state(write_shards(tmp_path, [12]))
    steps = stream.steps()
    next(steps)
    next(iter(stream))
    with pytest.raises(UsageError, match="begun before another one"):
        next(steps)
    stream.commit()
    assert stream.cursor == 4
