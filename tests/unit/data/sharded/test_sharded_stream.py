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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import datasets
import psutil
import pytest
import torch
from datasets.distributed import split_dataset_by_node

import elastic_runtime as elastic
from elastic_runtime.data import steps as step_module
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
    steps = stream.steps(epochs=epochs)
    return [(step.epoch, sorted(piece.tolist())) for step in steps for piece in step]


def check(steps: list[GlobalStep], sizes: list[int], epochs: int, batch: int) -> None:
    """Each epoch has each sample once, in full batches but for the last, evenly shared out."""
    by_epoch = collections.defaultdict(list)
    for step in steps:
        by_epoch[step.epoch].append(step.samples)
        check_pieces(step)
    assert sorted(by_epoch) == (list(range(epochs)) if sum(sizes) else [])
    for batches in by_epoch.values():
        assert sorted(n for each in batches for n in each) == list(range(sum(sizes)))
        assert {len(each) for each in batches[:-1]} <= {batch}


def check_pieces(step: GlobalStep) -> None:
    """As many on all ranks, none of them empty; shares and pieces are even; weights are right."""
    assert len({len(own) for own in step.by_rank}) == 1
    assert all(piece for own in step.by_rank for _, piece in own)
    shares = [sum(map(len, own)) for own in step.counted]
    assert max(shares) - min(shares) <= 1
    for own, counted in zip(step.by_rank, step.counted, strict=True):
        lengths = [len(piece) for piece in counted]
        assert max(lengths) - min(lengths) <= 1
        weights = [length * len(step.by_rank) / len(step.samples) for length in lengths]
        assert [weight for weight, _ in own] == pytest.approx(weights)


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
        "global_batch_size": batch,
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
        more = {**settings, "at_once": draw.choice([None, 1, 2, 3, 5])}
        survivors = draw.sample(ranks, draw.randint(0, min(world, len(ranks))))
        position = json.dumps(ranks[0].state_dict()) if ranks else ""
        ranks = survivors + [
            elastic.ShardedStream(shards, **more) for _ in range(world - len(survivors))
        ]
        for rank in survivors:  # as in a new program, whose at_once= is another one
            rank._at_once = more["at_once"] or 0
        draw.shuffle(ranks)
        for rank in ranks if position else []:
            rank.load_state_dict(json.loads(position))
        steps = draw.randint(1, fewest)
        made += live(monkeypatch, ranks, steps, epochs, cut_off=draw.random() < 0.5)
        faults += 1
    assert faults >= 4 or len(expected) < 4
    assert len({json.dumps(rank.state_dict()) for rank in ranks}) == 1
    check(made, sizes, epochs, batch)
    assert [(step.epoch, step.samples) for step in made] == expected


@pytest.mark.parametrize("at_once", [None, 3])
@pytest.mark.parametrize("processes", [1, 2])
def test_processes_give_the_same_batches_also_after_a_break(
    processes: int, at_once: int | None, tmp_path: Path
) -> None:
    shards = write_shards(tmp_path, [random.Random(n).randint(0, 90) for n in range(12)])
    settings: dict[str, Any] = {"global_batch_size": 8, "shuffle_buffer": 100}
    expected = alone(shards, 2, **settings)
    stream = elastic.ShardedStream(shards, num_workers=processes, at_once=at_once, **settings)
    made = []
    stops = iter([3, 1, 17, 2, 30])
    while stream.epoch < 2:
        stop = next(stops, 1000)
        for step in stream.steps(epochs=2):
            samples = []
            for piece in step:
                samples += piece.tolist()
                if step.number > stop:
                    break  # it comes again
            if step.number > stop:
                break
            made.append((step.epoch, sorted(samples)))
            stream.commit()
    assert made == expected


def test_nothing_of_the_processes_is_left_and_they_keep_few_files(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [300] * 4)
    stream = elastic.ShardedStream(shards, global_batch_size=4, num_workers=2)
    files, before = 0, set(psutil.Process().children())
    for _ in stream.steps(epochs=1):
        for process in set(psutil.Process().children()) - before:
            blobs = [f for f in Path(f"/proc/{process.pid}/fd").iterdir() if "memfd" in _target(f)]
            files = max(files, len(blobs))
    assert 0 < files < 60  # of more than a hundred that there have been


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def halfway(shards: list[str], steps: int, **settings: Any) -> dict[str, Any]:
    """The position after some steps, as a checkpoint has it."""
    stream = elastic.ShardedStream(shards, **settings)
    list(stream.steps(steps=steps))
    position: dict[str, Any] = json.loads(json.dumps(stream.state_dict()))
    return position


def rest(stream: ShardedStream) -> list[int]:
    """The samples up to the end of the epoch."""
    steps = stream.steps(epochs=stream.epoch + 1)
    return [n for step in steps for piece in step for n in piece.tolist()]


def test_a_saved_position_decides_on_seed_and_streams(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [30] * 10)
    settings: dict[str, Any] = {"global_batch_size": 6, "shuffle_buffer": 20}
    position = halfway(shards, 10, seed=4, **settings)
    same = elastic.ShardedStream(shards, seed=4, **settings)
    other = elastic.ShardedStream(shards, seed=5, streams=2, **settings)
    for stream in (same, other):
        stream.load_state_dict(position)
    assert rest(same) == rest(other)


def test_another_batch_counts_from_the_next_lot_on(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [100] * 10)
    stream = elastic.ShardedStream(shards, global_batch_size=9)
    stream.load_state_dict(halfway(shards, 10, global_batch_size=6))
    batches = [piece.tolist() for step in stream.steps(epochs=1) for piece in step]
    assert [len(batch) for batch in batches[:6]] == [6] * 6
    assert {len(batch) for batch in batches[6:-1]} == {9}
    assert len({n for batch in batches for n in batch}) == sum(map(len, batches)) == 940


def test_other_shards_are_refused_within_an_epoch_and_taken_between_two(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [10] * 4)
    position = halfway(shards, 3, global_batch_size=4)
    fewer = elastic.ShardedStream(shards[:3], global_batch_size=4)
    with pytest.raises(UsageError, match="in the middle of epoch 0 of other shards"):
        fewer.load_state_dict(position)
    fewer.load_state_dict(halfway(shards, 10, global_batch_size=4))
    assert (fewer.epoch, sorted(rest(fewer))) == (1, list(range(30)))


def test_a_shard_that_has_changed_within_an_epoch_is_noticed(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [10] * 4)
    position = halfway(shards, 3, global_batch_size=4)
    with open(shards[1], "a") as file:
        file.write("77\n")
    stream = elastic.ShardedStream(shards, global_batch_size=4)
    stream.load_state_dict(position)
    with pytest.raises(UsageError, match="had 10 samples, and has 11 now"):
        next(stream.steps())


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "the shard .*/none.jsonl cannot be read: F"),
        ("half", "a sample of the shard .*/half.jsonl cannot be decoded: "),
    ],
)
def test_a_shard_that_is_gone_or_broken_is_one_clear_line(
    processes: int, name: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "half.jsonl").write_text("1\n2\n{half")
    shards = [*write_shards(tmp_path, [10, 10]), tmp_path / f"{name}.jsonl"]
    stream = elastic.ShardedStream(shards, global_batch_size=4, num_workers=processes)
    with pytest.raises(BrokenShard, match=rf"^{words}.*$"):
        list(stream.steps(epochs=1))
    with pytest.raises(BrokenShard, match=rf"^{words}.*$"):
        list(stream)


def test_any_function_may_read() -> None:
    shards = ["abc", "", "defgh"]
    stream = elastic.ShardedStream(shards, read=letters, global_batch_size=2, num_workers=1)
    list(stream.steps(steps=1))
    again = elastic.ShardedStream(shards, read=letters, global_batch_size=2)
    again.load_state_dict(stream.state_dict())
    assert sum(len(piece) for step in again.steps(epochs=1) for piece in step) == 6


@pytest.mark.parametrize(
    ("shards", "settings", "words"),
    [
        *((none, {"read": "tar"}, "no shard in the list") for none in ([], (), iter(()), range(0))),
        *(
            (odd, {"read": read}, "a list of paths or URLs")
            for odd in (7, None, b"a.tar", {"a.tar": 1}, {"a.tar", "b.tar"})
            for read in (None, "tar", list)
        ),
        ([{"a": 1}], {}, r"is no path: .* belongs in elastic\.DataLoader"),
        (["a.tar", "b.bin"], {}, r"shard 'b\.bin' does not tell how it is to be read"),
        ([7], {}, "the shard 7 is no path"),
        (["a.tar", "b.jsonl"], {}, r"of several formats \(jsonl, tar\)"),
        ("nowhere/*.tar", {}, r"no file fits the pattern 'nowhere/\*\.tar'"),
        ("file:///nowhere/*.tar", {}, "no file fits the pattern 'file://"),
        ("nosuch://a/*.tar", {}, "cannot be looked up: ValueError: Protocol not known"),
        ("data-{000..009}.tar", {}, "braces are not expanded"),
        *((["a.tar"], {"read": read}, f"read={read!r} is not known") for read in ("csv", "", 3)),
        (["a.tar"], {"global_batch_size": 0}, "global_batch_size=0: give a whole number"),
        (["a.tar"], {"at_once": 0}, "at_once=0: give a whole number"),
        (["a.tar"], {"streams": 0}, "streams=0: give a whole number"),
        (["a.tar"], {"shuffle_buffer": -1}, "shuffle_buffer=-1: give a whole number"),
        *(
            (["a.tar"], {name: None, "num_workers": 1}, f"decides on {name} itself")
            for name in ("batch_sampler", "drop_last", "persistent_workers", "sampler", "shuffle")
        ),
        (["a.tar"], {"shuffle": True, "drop_last": False}, "decides on drop_last, shuffle itself"),
        (["a.tar"], {"shuffle": True}, "itself; remove the option; shuffle_buffer="),
        (["a.tar"], {"buffer_size": 4}, "no option buffer_size; its own are .* shuffle_buffer"),
        (["a.tar"], {"in_order": False, "num_workers": 1}, "in_order=False"),
        (["a.tar"], {"rank": 1}, "rank=1 of world=None: give both"),
        (["a.tar"], {"rank": 2, "world": 2}, "rank=2 of world=2: give both"),
        (split_dataset_by_node(hugging_face(4), 0, 2), {}, "is split over ranks"),
        *((hugging_face(1), {"read": read}, "leave out read=") for read in ("tar", list)),
        (rows().shuffle(seed=1, buffer_size=20), {}, "has a shuffle buffer"),
        (rows().shuffle(seed=1).map(_twice), {}, "has a shuffle buffer"),
    ],
)
def test_what_makes_no_sense_is_refused(shards: Any, settings: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        elastic.ShardedStream(shards, **{"global_batch_size": 4, **settings})


def test_options_of_a_loader_are_fine() -> None:
    options: dict[str, Any] = {"num_workers": 2, "pin_memory": True, "in_order": True, "timeout": 3}
    elastic.ShardedStream(["a.tar"], global_batch_size=4, **options)


def test_shards_without_a_sample_are_refused(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [0, 0]), global_batch_size=2)
    with pytest.raises(UsageError, match="no sample in any of the shards"):
        next(stream.steps())


def test_it_says_that_it_has_no_length() -> None:
    stream = elastic.ShardedStream(range(1), read=chr, global_batch_size=2)
    with pytest.raises(TypeError, match="a ShardedStream has no length"):
        len(stream)
    assert stream
    assert "1 shards, global_batch_size=2; epoch 0, cursor 0, rank 0 of 1" in repr(stream)


@pytest.mark.parametrize(
    ("batch", "number", "streams"), [(64, 1000, 64), (256, 100, 64), (96, 50, 48), (97, 50, 50)]
)
def test_streams_make_even_parts_of_a_batch_where_that_can_be(
    batch: int, number: int, streams: int
) -> None:
    stream = elastic.ShardedStream(range(number), read=chr, global_batch_size=batch)
    assert len(stream._committed.lot.places) == streams


def number_of(row: dict[str, int]) -> int:
    return row["n"]


@pytest.mark.parametrize("processes", [0, 2])
def test_what_has_a_state_goes_on_in_each_of_many_lots(processes: int) -> None:
    settings = {"global_batch_size": 5, "shuffle_buffer": 10, "num_workers": processes}
    seen: list[int] = []
    position: dict[str, Any] = {}
    for steps in (3, 17, 20, 1, 200):
        stream = elastic.ShardedStream(rows(), decode=number_of, **settings)
        if position:
            stream.load_state_dict(json.loads(json.dumps(position)))
        for step in itertools.islice(stream.steps(epochs=1), steps):
            seen += [n for piece in step for n in piece.tolist()]
            stream.commit()
        position = stream.state_dict()
    assert sorted(seen) == [2 * n for n in range(600)]
    assert position["epoch"] == 1


def test_a_state_of_something_else_is_refused() -> None:
    stream = elastic.ShardedStream(range(3), read=chr, global_batch_size=2)
    with pytest.raises(UsageError, match="is that of something else: it has no "):
        stream.load_state_dict(elastic.DataLoader(range(10), 2).state_dict())


def test_a_loader_around_it_is_refused() -> None:
    stream = elastic.ShardedStream(range(3), read=chr, global_batch_size=2)
    with pytest.raises(UsageError, match=r"is itself a loader: iterate over its steps\(\)"):
        elastic.DataLoader(stream, 8)


def test_a_stream_that_is_dropped_ends_its_processes_at_once(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    stream = elastic.ShardedStream(
        write_shards(tmp_path, [90] * 6), global_batch_size=4, shuffle_buffer=50, num_workers=2
    )
    list(stream.steps(steps=3))
    gc.disable()
    try:
        assert len(set(psutil.Process().children()) - before) == 2
        began = weakref.ref(stream)
        del stream
        # No circle of references: their ends would come in any order, and be waited for.
        assert began() is None
        assert not set(psutil.Process().children()) - before
    finally:
        gc.enable()


def test_an_iteration_from_before_a_position_was_loaded_is_void(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [50]), global_batch_size=4)
    first = [piece.tolist() for piece in next(stream.steps())]
    steps = stream.steps()
    assert [piece.tolist() for piece in next(steps)] == first, "what is not committed comes again"
    position = stream.state_dict()
    for _ in range(4):
        next(steps)
    assert stream.cursor == 16
    stream.load_state_dict(position)
    with pytest.raises(UsageError, match="ask for steps\\(\\) anew"):
        next(steps)
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

    stream = elastic.ShardedStream(range(8), read=read, global_batch_size=8)
    with pytest.raises(ElasticError, match="is not to be had at present: ConnectionError: down"):
        next(stream.steps())
    down[0] = False
    assert sorted(rest(stream)) == list(range(80))


def test_a_rank_that_validates_asks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # and they are not connected
    shards = write_shards(tmp_path, [6, 3])
    stream = elastic.ShardedStream(shards, global_batch_size=4, rank=0, world=1)
    assert sorted(validated(stream)) == [*range(9)]
    with pytest.raises(UsageError, match="before a stream is used"):
        next(elastic.ShardedStream(shards, global_batch_size=4).steps())


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
    scalers: tuple[Any, ...] = ()

    def commit(self, stream: ShardedStream) -> None:
        stream.before_commit(optimized=True)
        stream.commit()
        self.step += 1


def in_state(shards: list[str], **options: Any) -> tuple[ShardedStream, Any]:
    stream, job = elastic.ShardedStream(shards, global_batch_size=4, **options), Job()
    stream.enter(world_of(0, 1))
    stream.belong_to(job)  # type: ignore[arg-type]
    return stream, job


def test_its_steps_tell_what_they_are(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [5, 3, 2])
    expected = alone(shards, 2, global_batch_size=4)
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


@pytest.mark.parametrize(
    ("world", "batch", "at_once", "shares"),
    [
        (1, 23, 8, [[8, 8, 7]]),
        (1, 22, 8, [[8, 7, 7]]),
        (2, 23, 6, [[6, 6], [6, 5]]),
        (3, 10, 2, [[2, 2], [2, 1], [2, 1]]),
        (3, 4, 1, [[1, 1], [1, 0], [1, 0]]),
        (4, 3, 2, [[1], [1], [1], [0]]),
        (4, 9, None, [[3], [2], [2], [2]]),
    ],
)
def test_shares_are_cut_evenly_into_as_many_pieces_on_each_rank(
    world: int,
    batch: int,
    at_once: int | None,
    shares: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = write_shards(tmp_path, [batch, batch + 1])
    settings: dict[str, Any] = {"global_batch_size": batch, "shuffle_buffer": 10}
    expected = alone(shards, 1, **settings)
    ranks = [elastic.ShardedStream(shards, at_once=at_once, **settings) for _ in range(world)]
    made = live(monkeypatch, ranks, 100, 1)
    assert [[list(map(len, own)) for own in step.counted] for step in made[:2]] == [shares] * 2
    assert [(step.epoch, step.samples) for step in made] == expected
    check(made, [batch, batch + 1], 1, batch)


def test_sums_and_gradients_are_those_of_one_rank_with_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, [9, 4, 0, 6])
    settings: dict[str, Any] = {"global_batch_size": 7, "shuffle_buffer": 5}
    expected = learned(monkeypatch, shards, 1, settings)
    assert len(expected) == 6
    for world, at_once in [(1, 2), (2, 2), (2, 1), (3, 1), (3, None), (4, 5)]:
        found = learned(monkeypatch, shards, world, {**settings, "at_once": at_once})
        for (total, gradient), wanted in zip(found, expected, strict=True):
            assert total == wanted[0]
            assert gradient == pytest.approx(wanted[1])


def learned(
    monkeypatch: pytest.MonkeyPatch, shards: list[str], world: int, settings: dict[str, Any]
) -> list[tuple[float, float]]:
    """Of each step what its samples come to, and the mean gradient of all ranks."""
    peers, local = ThreadPeers(world), threading.local()
    monkeypatch.setattr(step_module, "Peers", lambda group: peers.of(local.rank))

    def work(rank: int) -> list[tuple[float, float]]:
        local.rank = rank
        stream = elastic.ShardedStream(shards, **settings)
        stream.enter(world_of(rank, world))
        steps = []
        for step in stream.steps(epochs=2):
            total = step.total(lambda piece: float(piece.sum()))
            weight = torch.zeros((), requires_grad=True)
            for piece in step:
                step.backward((weight * piece).mean())
            assert weight.grad is not None
            steps.append((total, weight.grad.item()))
        return steps

    with ThreadPoolExecutor(world) as ranks:
        by_step = zip(*ranks.map(work, range(world)), strict=True)
    return [(one[0][0], sum(grad for _, grad in one) / world) for one in by_step]


def test_a_step_that_was_cut_off_is_repeated_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, [40, 30, 50])
    settings: dict[str, Any] = {"global_batch_size": 12, "shuffle_buffer": 20, "at_once": 2}
    whole, broken = (
        [elastic.ShardedStream(shards, **settings) for _ in range(2)] for _ in range(2)
    )
    expected = live(monkeypatch, whole, 100, 1)
    found: list[GlobalStep] = []
    while len(found) < len(expected):
        found += live(monkeypatch, broken, 3, 1, cut_off=True)
    assert found == expected


def test_people_are_told_how_a_step_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    noted = SimpleNamespace(rank=0, in_place=False, note=lambda event: told.append(event.message()))
    monkeypatch.setattr(step_module, "context", lambda: noted)
    stream, job = in_state(write_shards(tmp_path, [10]), at_once=2)
    for _ in stream.steps(epochs=2):
        job.commit(stream)
    assert told == ["a step has 4 samples: 1 worker, 2 at once each, in 2 pieces"]


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


def test_the_next_epoch_may_begin_before_the_last_step_of_one_is_committed(tmp_path: Path) -> None:
    stream, job = in_state(write_shards(tmp_path, [8]))
    steps = list(itertools.islice(stream.steps(epochs=2), 3))
    assert [(step.epoch, step.last_of_epoch) for step in steps] == [(0, 0), (0, 1), (1, 0)]
    assert (stream.epoch, stream.cursor) == (0, 0)
    job.commit(stream)
    assert (stream.epoch, stream.cursor) == (1, 4)


# Directly, for a validation


def validated(stream: ShardedStream) -> list[int]:
    return [n for batch in stream for n in batch.tolist()]


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_each_rank_validates_with_shards_of_its_own(
    world: int, processes: int, tmp_path: Path
) -> None:
    shards = write_shards(tmp_path, [90, 3, 0, 70, 5])
    ranks = [
        elastic.ShardedStream(
            shards, global_batch_size=6, shuffle_buffer=9, at_once=2, rank=rank, world=world,
            num_workers=processes,
        )
        for rank in range(world)
    ]  # fmt: skip
    shares = [validated(rank) for rank in ranks]
    assert sorted(n for own in shares for n in own) == list(range(168))
    assert [validated(rank) for rank in ranks] == shares, "each time the same"
    assert {len(batch) for rank in ranks for batch in rank} <= {1, 2}
    assert all((rank.epoch, rank.cursor) == (0, 0) for rank in ranks)


def test_a_stream_is_trained_after_a_validation_and_validated_after_training(
    tmp_path: Path,
) -> None:
    shards = write_shards(tmp_path, [200, 100])
    stream = elastic.ShardedStream(shards, global_batch_size=4, num_workers=2)
    first = next(iter(stream)).tolist()
    list(stream.steps(steps=40))
    assert stream.cursor == 160
    assert sorted(validated(stream)) == list(range(300))
    assert len(rest(stream)) == 140
    assert next(iter(stream)).tolist() == first


def test_what_was_validated_with_is_not_kept(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [300] * 2), global_batch_size=4)
    for _ in stream:
        assert len({key.lot for key in stream._windows._held}) <= 3
    assert not stream._windows._held


def test_a_second_iteration_ends_the_first(tmp_path: Path) -> None:
    stream = elastic.ShardedStream(write_shards(tmp_path, [30]), global_batch_size=4)
    steps, batches = stream.steps(), iter(stream)
    next(batches)
    again = iter(stream)
    with pytest.raises(UsageError, match="begun before another one"):
        next(batches)
    assert len(list(again)) == 8
    step = next(steps)
    next(iter(stream))
    with pytest.raises(UsageError, match="begun before another one"):
        next(steps)
    with pytest.raises(UsageError, match="step 1 is over"):
        list(step)


def test_a_stream_in_a_state_is_not_iterated_directly(tmp_path: Path) -> None:
    stream, _ = in_state(write_shards(tmp_path, [30]))
    with pytest.raises(UsageError, match=r"is in a State, .* iterate over loader\.steps"):
        iter(stream)
