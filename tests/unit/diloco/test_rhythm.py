"""When a sync is due, which fragment has its turn, and how parameters are cut into fragments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.diloco.rhythm import Rhythm, Schedule, cut


def test_a_sync_is_due_after_so_many_inner_steps_and_not_before() -> None:
    rhythm = Rhythm(every=4)
    schedule = Schedule.first(rhythm)
    due = []
    for _ in range(5):
        schedule = schedule.stepped()
        due.append(rhythm.is_due(schedule))
    assert due == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("delay", "begins"),
    [
        (0, [False, False, False, True]),
        (1, [False, False, True, True]),
        (3, [True, True, True, True]),
    ],
)
def test_an_exchange_begins_so_many_inner_steps_before_its_sync(
    delay: int, begins: list[bool]
) -> None:
    rhythm = Rhythm(every=4, delay=delay)
    schedules = [Schedule(position, (position,)) for position in (1, 2, 3, 4)]
    assert [rhythm.begins(schedule) for schedule in schedules] == begins


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 40))
def test_fragments_take_turns_at_even_distances(fragments: int, every: int, steps: int) -> None:
    rhythm = Rhythm(every, fragments)
    schedule = Schedule.first(rhythm)
    syncs: list[tuple[int, int]] = []
    for step in range(1, steps + 1):
        schedule = schedule.stepped()
        if rhythm.is_due(schedule):
            syncs.append((step, schedule.fragment))
            schedule = schedule.synced([schedule.fragment])
            assert schedule.position == 0
            assert schedule.ages[syncs[-1][1]] == 0
    turns = steps // every
    assert syncs == [(every * (turn + 1), turn % fragments) for turn in range(turns)]


def test_the_fragment_that_has_waited_longest_has_its_turn() -> None:
    assert Schedule(2, (4, 2, 6)).fragment == 2
    assert Schedule(2, (2, 2, 2)).fragment == 0
    assert Schedule(2, (4, 2, 6)).synced([2]) == Schedule(0, (4, 2, 0))


def test_a_fragment_is_trained_until_it_has_a_sync() -> None:
    schedule = Schedule.first(Rhythm(every=5, fragments=2))
    assert schedule.trained == ()
    schedule = schedule.stepped()
    assert schedule == Schedule(1, (1, 1))
    found = [schedule.synced(turns).trained for turns in ([], [0], [1], [0, 1])]
    assert found == [(0, 1), (1,), (0,), ()]


def test_a_sync_may_be_agreed_on_before_it_is_due() -> None:
    rhythm = Rhythm(every=10)
    due = [rhythm.is_due(Schedule(position, (position,)), 4) for position in (0, 3, 4, 5)]
    assert due == [False, False, True, True]
    assert rhythm.is_due(Schedule(0, (0,)), 0)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.data())
def test_parameters_are_cut_into_pieces_of_about_the_same_size(
    sizes: list[int], data: st.DataObject
) -> None:
    pieces = data.draw(st.integers(1, len(sizes)))
    found = cut(sizes, pieces)
    assert [number for piece in found for number in piece] == list(range(len(sizes)))
    assert len(found) == pieces
    assert all(found)
    largest = max(sum(sizes[number] for number in piece) for piece in found)
    assert largest <= sum(sizes) / pieces + max(sizes)


@pytest.mark.parametrize(
    ("sizes", "pieces", "lengths"),
    [
        ([1, 1, 1, 1, 1, 1], 3, [2, 2, 2]),
        ([12, 4, 8, 2], 2, [2, 2]),
        ([100, 1, 1], 3, [1, 1, 1]),
        ([1, 1, 100], 2, [2, 1]),
        ([0, 0, 0], 2, [1, 2]),
        ([7], 1, [1]),
    ],
)
def test_a_cut_is_where_a_share_of_all_elements_is_reached(
    sizes: list[int], pieces: int, lengths: list[int]
) -> None:
    assert [len(piece) for piece in cut(sizes, pieces)] == lengths
