"""What a rank says of what it holds: nothing is lost, and ranks that are alike say the same."""

from __future__ import annotations

import json
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.rank_outline import (
    EvenCut,
    Item,
    Outline,
    OutlineParts,
    cuts_of,
    say,
    schema_of,
)


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


def test_no_box_is_too_odd() -> None:
    held = [Item("w", "float32", (10, 4), (3, 1), (4, 2), 32)]
    assert understood(say(held, 0, 2), 0) == held
