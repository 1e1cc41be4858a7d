"""Who goes on from where after a change of the world between two syncs."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.diloco.rhythm import Schedule
from elastic_runtime.diloco.standings import Meeting, Standing, meet

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


def test_ranks_that_have_trained_nothing_begin_together() -> None:
    beginning = Meeting(Schedule(0, (0, 0)), None, (), (), (0, 1))
    assert meet([NEW, NEW], 7) == beginning
    # What was trained from another commit than the common one is worth nothing.
    assert meet([at(3, after=6), at(2, after=8)], 7) == beginning


def test_a_rank_that_is_behind_keeps_what_it_has_and_a_new_one_begins_where_the_furthest_is() -> (
    None
):
    meeting = meet([at(2), NEW, at(4), at(3, after=6), at(4)], 7)
    assert meeting == Meeting(Schedule(4, (9, 4)), 2, (0, 2, 4), (0,), (1, 3))


def test_a_rank_that_was_left_out_meanwhile_keeps_nothing() -> None:
    left_out = replace(at(5), round=3)
    meeting = meet([replace(at(2), round=4), left_out, replace(at(4), round=4)], 7)
    assert (meeting.furthest, meeting.kept, meeting.new) == (2, (0, 2), (1,))
    # If those are gone who were there after it, it is the one that knows most.
    assert meet([left_out, NEW], 7).kept == (0,)


def test_of_ranks_that_are_equally_far_the_first_one_gives() -> None:
    meeting = meet([NEW, at(4), at(4)], 7)
    assert (meeting.furthest, meeting.kept, meeting.behind) == (1, (1, 2), ())


def test_a_rank_that_was_there_at_the_commit_and_has_made_no_step_keeps_its_memory() -> None:
    meeting = meet([at(0), at(0), NEW], 7)
    assert meeting == Meeting(Schedule(0, (5, 0)), 0, (0, 1), (), (2,))


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
