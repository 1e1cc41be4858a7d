"""Whose shares of which batches a rank takes after the world has changed between two commits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.data.outlook import Outlook, Stretch, earlier_shares
from elastic_runtime.data.sampler import ElasticBatchSampler, share_of
from elastic_runtime.worker.world import World

BATCH = 6


def stretch(until: int, rank: int = 0, world: int = 2) -> Stretch:
    """Batches of epoch 0 up to a cursor."""
    return Stretch((0, until), rank, world, BATCH)


def test_an_outlook_says_whose_shares_are_taken_where() -> None:
    first, second = stretch(12), stretch(24, world=3)
    outlook = Outlook(0, 6, 0, 1, 4, BATCH, earlier=(first, second))
    places = [outlook.at((0, cursor)) for cursor in (6, 11, 12, 18, 24)]
    assert places == [first, first, second, second, outlook]
    assert outlook.at((1, 0)) is outlook
    later = Outlook(0, 18, 0, 1, 4, BATCH, earlier=(Stretch((1, 6), 0, 2, BATCH),))
    assert [later.at(place).world for place in ((0, 18), (1, 0), (1, 6))] == [2, 2, 4]
    assert Outlook(0, 6, 0, 1, 4, BATCH).at((0, 0)).world == 4


@pytest.mark.parametrize(
    ("known", "here", "until", "expected"),
    [
        # The furthest rank has none to catch up with.
        ((), 12, 12, ()),
        # One that is behind takes the shares of the world that is over.
        ((), 6, 12, (stretch(12, 1, 3),)),
        # What it still had to take from an earlier world comes first.
        ((stretch(12),), 6, 24, (stretch(12), stretch(24, 1, 3))),
        # That has been taken.
        ((stretch(12),), 12, 24, (stretch(24, 1, 3),)),
        ((stretch(12), stretch(18)), 12, 24, (stretch(18), stretch(24, 1, 3))),
        # The rank that was further is lost, and what it had with it.
        ((stretch(24),), 6, 12, (stretch(12),)),
        ((stretch(12), stretch(24)), 6, 18, (stretch(12), stretch(18))),
        ((stretch(24),), 12, 12, ()),
    ],
)
def test_a_rank_takes_the_shares_it_had_until_it_is_where_the_furthest_is(
    known: tuple[Stretch, ...], here: int, until: int, expected: tuple[Stretch, ...]
) -> None:
    found = earlier_shares(known, (0, here), (0, until), (1, 3), BATCH, 0)
    assert found == expected


# Any history


@dataclass
class Learner:
    """A rank, through all worlds that it takes part in.

    Attributes:
        batch: which one it takes next.
        place: as which rank of how many.
        earlier: whose shares it takes until where it has caught up.
        taken: samples, by batch and number.
    """

    batch: int
    place: tuple[int, int]
    earlier: tuple[Stretch, ...] = ()
    taken: list[tuple[int, int]] = field(default_factory=list)

    @property
    def cursor(self) -> tuple[int, int]:
        return 0, self.batch * BATCH

    def train(self, batches: int) -> None:
        """Takes its shares of the next batches."""
        outlook = Outlook(*self.cursor, 0, *self.place, BATCH, earlier=self.earlier)
        for _ in range(batches):
            share = outlook.at(self.cursor)
            numbers = range(*share_of(share.batch, share.rank, share.world))
            self.taken += [(self.batch, number) for number in numbers]
            self.batch += 1


def regrouped(ranks: list[Learner], joining: int) -> list[Learner]:
    """The next world: those who go on, and new ones where the furthest is."""
    furthest = max((rank.batch for rank in ranks), default=0)
    for rank in ranks:
        until = 0, furthest * BATCH
        rank.earlier = earlier_shares(rank.earlier, rank.cursor, until, rank.place, BATCH, 0)
    world = [*ranks, *(Learner(furthest, (0, 1)) for _ in range(joining))]
    for number, rank in enumerate(world):
        rank.place = number, len(world)
    return world


@st.composite
def histories(draw: st.DrawFn, *, losses: bool) -> tuple[list[Learner], list[Learner]]:
    """Ranks that are left at the end of a random history, equally far, and those that are lost."""
    ranks = regrouped([], draw(st.integers(1, 4)))
    lost: list[Learner] = []
    for _ in range(draw(st.integers(0, 4))):
        for rank in ranks:
            rank.train(draw(st.integers(0, 5)))
        ranks = draw(st.permutations(ranks))
        if losses:
            gone = draw(st.integers(0, len(ranks) - 1))
            ranks, lost = ranks[gone:], lost + ranks[:gone]
            furthest = max(rank.batch for rank in ranks)
            for rank in lost[len(lost) - gone :]:
                rank.train(furthest - rank.batch)  # what nobody trains in its place
        ranks = regrouped(ranks, draw(st.integers(0, 2)))
    end = max(rank.batch for rank in ranks) + 1
    for rank in ranks:
        rank.train(end - rank.batch)
    return ranks, lost


@given(histories(losses=False))
def test_without_losses_every_sample_of_every_batch_is_taken_exactly_once(
    history: tuple[list[Learner], list[Learner]],
) -> None:
    ranks, _ = history
    taken = Counter(sample for rank in ranks for sample in rank.taken)
    batches = range(ranks[0].batch)
    assert taken == {(batch, number): 1 for batch in batches for number in range(BATCH)}


@given(histories(losses=True))
def test_no_two_ranks_that_go_on_take_the_same_sample_and_only_a_lost_ones_are_left_out(
    history: tuple[list[Learner], list[Learner]],
) -> None:
    ranks, lost = history
    taken = Counter(sample for rank in ranks for sample in rank.taken)
    assert set(taken.values()) == {1}
    everything = {(batch, number) for batch in range(ranks[0].batch) for number in range(BATCH)}
    assert everything - set(taken) <= {sample for rank in lost for sample in rank.taken}


# The sampler


def behind(until: tuple[int, int] = (0, 12)) -> ElasticBatchSampler:
    """As rank 0 of 2, and as rank 2 of 3 until there."""
    sampler = ElasticBatchSampler(24, BATCH, seed=1, rank=0, world=2)
    sampler.earlier = (Stretch(until, 2, 3, BATCH),)
    return sampler


def test_a_sampler_gives_the_old_shares_up_to_there_and_the_new_ones_after() -> None:
    old = list(ElasticBatchSampler(24, BATCH, seed=1, rank=2, world=3))
    new = list(ElasticBatchSampler(24, BATCH, seed=1, rank=0, world=2))
    assert list(behind()) == [*old[:2], *new[2:]]


def test_a_sampler_goes_on_with_the_old_shares_in_the_next_epoch() -> None:
    old = ElasticBatchSampler(24, BATCH, seed=1, rank=2, world=3)
    ours = behind((1, 6))
    assert list(ours) == list(old)
    for sampler in (old, ours):
        for _ in range(4):
            sampler.commit()
    new = ElasticBatchSampler(24, BATCH, seed=1, rank=0, world=2)
    new.epoch = 1
    assert list(ours) == [*list(old)[:1], *list(new)[1:]]


def test_the_loss_is_weighted_by_the_share_that_is_taken() -> None:
    loader = DataLoader(range(24), 5)
    loader.enter(World(1, 2, 1, 2, 0, 1, 1))  # 2 of 5
    loader.batch_sampler.earlier = (Stretch((0, 5), 0, 3, 5),)  # 2 of 5, and of 3 ranks
    steps = loader.steps()
    assert [next(steps).weights for _ in range(2)] == [[pytest.approx(1.2)], [pytest.approx(0.8)]]


def test_a_commit_moves_past_a_batch_of_the_size_that_it_had() -> None:
    sampler = ElasticBatchSampler(24, 4, rank=0, world=2)
    sampler.earlier = (Stretch((0, 12), 0, 1, 6),)
    cursors = []
    for shares in list(sampler):
        cursors.append((sampler.cursor, len(shares)))
        sampler.commit()
    assert cursors == [(0, 6), (6, 6), (12, 2), (16, 2), (20, 2)]
    assert (sampler.epoch, sampler.cursor) == (1, 0)


def test_an_old_batch_comes_in_pieces_of_the_size_that_they_had() -> None:
    sampler = ElasticBatchSampler(24, 12, at_once=3, rank=0, world=2)
    sampler.earlier = (Stretch((0, 12), 0, 1, 12, 4),)
    assert [len(piece) for piece in sampler] == [4, 4, 4, 3, 3]
