"""What ranks say of what they hold, where that overlaps, and who writes it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.rank_outline import (
    EvenCut,
    Item,
    Outline,
    OutlineParts,
    cuts_of,
    say,
    schema_of,
)
from elastic_runtime.errors import CheckpointError
from tests.checkpoints import plan_of


def whole(key: str, *shape: int) -> Item:
    return Item(key, "float32", shape, (0,) * len(shape), shape, 4 * prod(shape))


def rows(key: str, shape: tuple[int, int], begin: int, count: int) -> Item:
    sizes = (count, shape[1])
    return Item(key, "float32", shape, (begin, 0), sizes, 4 * prod(sizes))


def files(held: list[list[Item]]) -> list[list[Item]]:
    """What each rank's file holds."""
    plan = plan_of(held)
    found = [plan.file(rank) for rank in range(len(held))]
    sizes = [[item.bytes if item.dtype else -1 for item in file] for file in found]
    assert [list(each) for each in plan.sizes] == sizes
    return found


def test_what_all_hold_is_written_once_and_shared_out() -> None:
    items = [whole("a", 100), whole("b", 60), whole("c", 50), Item("steps")]
    found = files([items, items[:3]])
    assert [[item.key for item in file] for file in found] == [["a", "steps"], ["b", "c"]]


def test_shards_are_written_by_their_holders() -> None:
    shape = (5, 2)
    held = [
        [rows("w", shape, 0, 3), whole("b", 4)],
        [rows("w", shape, 3, 2), whole("b", 4)],
        [rows("w", shape, 5, 0), whole("b", 4)],  # more ranks than rows
    ]
    assert [[item.key for item in file] for file in files(held)] == [["w"], ["w"], ["b"]]


def test_a_shard_that_several_hold_is_written_by_one() -> None:
    halves = [rows("w", (4, 1), 0, 2), rows("w", (4, 1), 2, 2)]
    held = [[halves[0]], [halves[1]], [halves[0]], [halves[1]]]
    assert files(held) == [[halves[0]], [halves[1]], [], []]


def test_a_tensor_without_elements_is_kept() -> None:
    assert files([[whole("empty", 0, 3)]] * 2) == [[whole("empty", 0, 3)], []]


def test_values_come_last_in_a_file() -> None:
    (file,) = files([[Item("a"), whole("b", 1), Item("c"), whole("d", 1)]])
    assert [item.key for item in file] == ["b", "d", "a", "c"]


@pytest.mark.parametrize(
    ("held", "what"),
    [
        ([[whole("w", 3)], [whole("w", 4)]], r"w: .*\(3,\) on rank 0 and .*\(4,\) on rank 1"),
        ([[whole("w", 3)], [Item("w")]], "no tensor on rank 1"),
        ([[whole("w", 3)], [replace(whole("w", 3), dtype="int64")]], "int64"),
        ([[rows("w", (4, 2), 0, 2)]], "4 of its 8 elements"),
        ([[rows("w", (4, 2), 4, 0)]], "0 of its 8 elements"),
    ],
)
def test_ranks_that_do_not_fit_together_are_told(held: list[list[Item]], what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        plan_of(held)


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 8))
def test_everything_is_written_once_and_nobody_writes_much_more(
    sizes: list[int], world: int
) -> None:
    items = [whole(f"w{index}", size) for index, size in enumerate(sizes)]
    found = files([items] * world)
    assert sorted(item.key for file in found for item in file) == sorted(i.key for i in items)
    loads = [sum(item.bytes for item in file) for file in found]
    assert max(loads) - min(loads) <= 4 * max(sizes, default=0)


# What a rank says of what it holds: nothing is lost, and ranks that are alike say the same


def item(key: str, shape: tuple[int, ...], *cuts: EvenCut) -> Item:
    offsets, sizes = [0] * len(shape), list(shape)
    for cut in cuts:
        offsets[cut.dim], sizes[cut.dim] = cut.span(shape[cut.dim])
    return Item(key, "float32", shape, tuple(offsets), tuple(sizes), 4 * prod(sizes))


def understood(said: OutlineParts, rank: int) -> list[Item]:
    schema, pattern, cuts = map(json.loads, said.parts)
    outline = Outline(schema_of(schema), tuple(pattern), cuts_of(cuts))
    return outline.items(rank, range(len(outline.schema)))


@st.composite
def items(draw: st.DrawFn) -> list[Item]:
    held = []
    for number in range(draw(st.integers(0, 8))):
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        offsets = tuple(draw(st.integers(0, length)) for length in shape)
        sizes = tuple(
            draw(st.integers(0, length - begin))
            for begin, length in zip(offsets, shape, strict=True)
        )
        key = draw(st.sampled_from([f"w{number}", f"w{number}.rank-1", f"w{number}.rank-11"]))
        tensor = Item(key, "int16", shape, offsets, sizes, 2 * prod(sizes), draw(st.booleans()))
        held.append(draw(st.sampled_from([tensor, Item(key)])))
    return held


@given(items(), st.integers(0, 12), st.integers(1, 12))
def test_nothing_is_lost(held: list[Item], rank: int, more: int) -> None:
    assert understood(say(held, rank, rank + more), rank) == held


def test_ranks_of_the_same_shards_differ_in_a_few_bytes() -> None:
    """Lengths that the ranks do not divide are cut as ``torch.chunk`` does: some have nothing."""
    world = 64
    said = []
    for rank in range(world):
        cut = EvenCut(0, world, rank)
        held = [item(f"w{length}", (length, 3), cut) for length in (64, 1000, 65, 7)]
        held += [item("norm", (5,)), Item(f"rng.rank-{rank}")]
        said.append(say(held, rank, world))
        assert understood(said[-1], rank) == held
    assert len({one.parts[:2] for one in said}) == 1, "the same schema, cut after the same pattern"
    assert max(len(one.parts[2]) for one in said) < 30


def test_tensors_cut_along_two_dimensions_or_in_another_number_of_parts() -> None:
    held = [
        item(f"w{number}", (64, 32), EvenCut(0, 4, 3), EvenCut(1, 2, 1)) for number in range(100)
    ]
    said = say(held, 7, 8)
    assert understood(said, 7) == held
    assert len(said.parts[2]) < 40


# Where the chunks of a tensor overlap, compared with what indexing picks


@st.composite
def chunks(draw: st.DrawFn, inside: Chunk) -> Chunk:
    """A chunk within another, maybe without elements."""
    offsets, sizes = [], []
    for offset, size in zip(inside.offsets, inside.sizes, strict=True):
        begin = draw(st.integers(0, size))
        offsets.append(offset + begin)
        sizes.append(draw(st.integers(0, size - begin)))
    return Chunk(tuple(offsets), tuple(sizes))


WHOLES = st.lists(st.integers(0, 4), max_size=4).map(lambda shape: Chunk.of(tuple(shape)))


def elements(whole: Chunk, chunk: Chunk) -> list[int]:
    numbered = torch.arange(whole.count).reshape(whole.sizes)
    return list(numbered[whole.index(chunk)].flatten().tolist())


@given(WHOLES.flatmap(lambda whole: st.tuples(st.just(whole), chunks(whole), chunks(whole))))
def test_the_overlap_is_what_both_hold(found: tuple[Chunk, Chunk, Chunk]) -> None:
    whole, one, other = found
    common = set(elements(whole, one)) & set(elements(whole, other))
    overlap = one.overlap(other)
    assert set(elements(whole, overlap) if overlap else []) == common
    assert one.overlap(other) == other.overlap(one)
    assert whole.holds(one)
    if other.count:
        assert one.holds(other) == (set(elements(whole, other)) <= set(elements(whole, one)))


@given(
    WHOLES.flatmap(lambda whole: chunks(whole).flatmap(lambda b: st.tuples(st.just(b), chunks(b))))
)
def test_a_run_is_found_exactly_where_there_is_one(found: tuple[Chunk, Chunk]) -> None:
    outer, inner = found
    if not inner.count:
        return
    picked = list(
        torch.arange(outer.count).reshape(outer.sizes)[outer.index(inner)].flatten().tolist()
    )
    one_run = picked == list(range(picked[0], picked[0] + len(picked)))
    assert outer.run(inner) == (picked[0] if one_run else None)


def test_a_scalar_is_one_element() -> None:
    scalar = Chunk.of(())
    assert scalar.count == 1
    assert scalar.overlap(scalar) == scalar
    assert scalar.run(scalar) == 0
