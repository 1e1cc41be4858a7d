"""Who writes what: the same on every rank, everything once, and about the same for each."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.rank_outline import Item
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
