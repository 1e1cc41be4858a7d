"""Where the chunks of a tensor overlap, compared with what indexing picks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.chunks import Chunk


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
