"""When a sync is due, who goes on from where if the world changes, and when ranks leave."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.diloco.early_sync import Vote
from elastic_runtime.diloco.rhythm import Rhythm, Schedule, cut
from elastic_runtime.diloco.standings import Meeting, Standing, meet
from elastic_runtime.worker.peers import Peers
from tests.ranks import run_ranks, values


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
    for agreed, expected in ((4, [False, False, True, True]), (0, [True] * 4)):
        due = [rhythm.is_due(Schedule(at, (at,)), agreed) for at in (0, 3, 4, 5)]
        assert due == expected
    assert [rhythm.is_due(Schedule(at, (at,))) for at in (9, 10, 11)] == [False, True, True]


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


# Who goes on from where after a change of the world between two syncs


NEW = Standing(-1, Schedule(0, (0, 0)))


def at(position: int, *, after: int = 7, ages: tuple[int, int] | None = None) -> Standing:
    """A rank that has made so many inner steps since a commit, in two fragments."""
    return Standing(after, Schedule(position, ages or (position + 5, position)))


standings = st.lists(
    st.builds(
        Standing,
        st.sampled_from([-1, 6, 7]),
        st.builds(Schedule, st.integers(0, 9), st.tuples(st.integers(0, 9), st.integers(0, 9))),
        st.booleans(),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)


def test_a_standing_is_the_same_after_it_was_sent() -> None:
    mine = at(3)
    assert Standing.of_plain(json.loads(json.dumps(mine.plain))) == mine


BEGINNING = Meeting(Schedule(0, (0, 0)), None, (), (), (0, 1))


@pytest.mark.parametrize(
    ("ranks", "meeting"),
    [
        ([NEW, NEW], BEGINNING),
        # What was trained from another commit than the common one is worth nothing.
        ([at(3, after=6), at(2, after=8)], BEGINNING),
        # One that is behind keeps what it has; new ones begin where the furthest is.
        (
            [at(2), NEW, at(4), at(3, after=6), at(4)],
            Meeting(Schedule(4, (9, 4)), 2, (0, 2, 4), (0,), (1, 3)),
        ),
        # Of those that are equally far the first one gives.
        ([NEW, at(4), at(4)], Meeting(Schedule(4, (9, 4)), 1, (1, 2), (), (0,))),
        # Who was there at the commit and has made no step keeps its memory.
        ([at(0), at(0), NEW], Meeting(Schedule(0, (5, 0)), 0, (0, 1), (), (2,))),
    ],
)
def test_who_goes_on_from_where(ranks: list[Standing], meeting: Meeting) -> None:
    assert meet(ranks, 7) == meeting


def test_a_rank_that_was_left_out_meanwhile_keeps_nothing() -> None:
    left_out = replace(at(5), round=3)
    meeting = meet([replace(at(2), round=4), left_out, replace(at(4), round=4)], 7)
    assert (meeting.furthest, meeting.kept, meeting.new) == (2, (0, 2), (1,))
    # If those are gone who were there after it, it is the one that knows most.
    assert meet([left_out, NEW], 7).kept == (0,)


@given(standings)
def test_every_rank_is_either_kept_or_new_and_none_is_further_than_the_furthest(
    ranks: list[Standing],
) -> None:
    meeting = meet(ranks, 7)
    assert sorted((*meeting.kept, *meeting.new)) == list(range(len(ranks)))
    last = max((one.round for one in ranks if one.after >= 0), default=0)
    there = [rank for rank, one in enumerate(ranks) if (one.after, one.round) == (7, last)]
    assert list(meeting.kept) == there
    assert set(meeting.behind) <= set(meeting.kept) - {meeting.furthest}
    positions = [ranks[rank].schedule.position for rank in meeting.kept]
    assert meeting.schedule.position == max(positions, default=0)
    assert (meeting.furthest is None) is (not meeting.kept)
    if meeting.furthest is not None:
        assert ranks[meeting.furthest].schedule == meeting.schedule


# The vote of ranks that are asked to leave at different inner steps


def test_a_rank_alone_is_the_furthest() -> None:
    vote = Vote(Peers())
    vote.cast(5)
    vote.cast(9)
    assert (vote.cast_at, vote.result()) == (5, 5)
    vote.close()
    assert vote.result() == 5


def votes(positions: list[int]) -> tuple[int, int]:
    """What this rank learns, twice."""
    vote = Vote(Peers(dist.group.WORLD))
    vote.cast(positions[dist.get_rank()])
    vote.cast(1000)
    return vote.result(), vote.result()


def test_all_meet_where_the_furthest_one_is() -> None:
    assert values(run_ranks(3, votes, [3, 7, 5])) == [(7, 7)] * 3


def leaves_with(voters: list[int]) -> int:
    """All leave together, and only some have voted before."""
    vote = Vote(Peers(dist.group.WORLD))
    if dist.get_rank() in voters:
        vote.cast(40)
    vote.close()
    return vote.result()


def test_a_voice_that_was_cast_is_answered_by_those_who_were_never_asked() -> None:
    assert values(run_ranks(3, leaves_with, [1])) == [40] * 3
    assert values(run_ranks(2, leaves_with, [])) == [0] * 2


def loses_a_rank() -> bool:
    """The other rank ends without a word."""
    vote = Vote(Peers(dist.group.WORLD))
    dist.barrier()  # both are connected
    if dist.get_rank() == 1:
        return True
    vote.close()  # a vote that is cast to nobody may be an error at once, or when it is waited for
    return vote.cast_at == 0


def test_a_rank_that_is_lost_while_all_leave_holds_up_nobody() -> None:
    assert values(run_ranks(2, loses_a_rank)) == [True] * 2
