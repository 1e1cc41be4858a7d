"""The order of the samples does not know how many ranks there are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from elastic_runtime.data.sampler import ElasticBatchSampler, share_of
from elastic_runtime.errors import UsageError


def world_of(size: int, batch: int, world: int, seed: int = 0) -> list[ElasticBatchSampler]:
    return [
        ElasticBatchSampler(size, batch, seed=seed, rank=rank, world=world) for rank in range(world)
    ]


def one_rank_sequence(size: int, batch: int, epochs: int, seed: int = 0) -> list[list[int]]:
    sampler = ElasticBatchSampler(size, batch, seed=seed, rank=0, world=1)
    found = []
    while sampler.epoch < epochs:
        for indices in sampler:
            found.append(indices)
            sampler.commit()
    return found


@given(st.integers(0, 100), st.integers(1, 9))
def test_shares_are_disjoint_complete_and_even(count: int, world: int) -> None:
    shares = [share_of(count, rank, world) for rank in range(world)]
    assert [i for first, end in shares for i in range(first, end)] == list(range(count))
    sizes = [end - first for first, end in shares]
    assert max(sizes) - min(sizes) <= 1


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 20),
    resizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1),
    seed=st.integers(0, 2**31),
)
def test_resizes_do_not_change_the_sequence(
    size: int, batch: int, resizes: list[tuple[int, int]], seed: int
) -> None:
    """Each life has a world, makes some steps, and reads further ahead than it commits."""
    epochs = 2
    expected = one_rank_sequence(size, batch, epochs, seed)
    position = world_of(size, batch, 1, seed)[0].state_dict()
    done: list[list[int]] = []
    lives = 0
    while position["epoch"] < epochs:
        world, steps = resizes[lives % len(resizes)]
        lives += 1
        samplers = world_of(size, batch, world, seed=0)
        for sampler in samplers:
            sampler.load_state_dict(position)
        plans = [list(sampler) for sampler in samplers]
        assert len({len(plan) for plan in plans} | {len(samplers[0])}) == 1
        for shares in list(zip(*plans, strict=True))[:steps]:
            weights = [sampler.loss_scale for sampler in samplers]
            assert sum(weights) == pytest.approx(world)
            done.append(
                [i for share, weight in zip(shares, weights, strict=True) if weight for i in share]
            )
            for sampler in samplers:
                sampler.commit()
        assert len({str(sampler.state_dict()) for sampler in samplers}) == 1
        position = samplers[0].state_dict()
    assert done == expected


def test_the_weighted_mean_over_ranks_is_the_mean_over_the_batch() -> None:
    losses = torch.arange(23.0)
    for world in (1, 2, 3, 4, 7):
        samplers = world_of(23, 5, world)
        plans = zip(*[list(sampler) for sampler in samplers], strict=True)
        for shares, batch in zip(plans, one_rank_sequence(23, 5, 1), strict=True):
            mean = sum(
                losses[share].mean() * sampler.loss_scale
                for share, sampler in zip(shares, samplers, strict=True)
            )
            assert float(mean) / world == pytest.approx(float(losses[batch].mean()))
            for sampler in samplers:
                sampler.commit()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        tuple(i for share in one_rank_sequence(50, 10, 2, seed) for i in share) for seed in (0, 1)
    ]
    halves = [order[:50] for order in orders] + [order[50:] for order in orders]
    assert len(set(halves)) == 4
    assert all(sorted(half) == list(range(50)) for half in halves)


def test_a_loader_that_reads_ahead_does_not_move_the_cursor() -> None:
    sampler = ElasticBatchSampler(12, 4, rank=0, world=1)
    loader = DataLoader(torch.arange(12), batch_sampler=sampler)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert sampler.state_dict()["cursor"] == 0
    sampler.commit()
    assert sampler.state_dict()["cursor"] == 4


def test_other_data_than_it_was_saved_over_is_refused() -> None:
    state = ElasticBatchSampler(12, 4, rank=0, world=1).state_dict()
    with pytest.raises(UsageError, match="12 samples, this one has 13"):
        ElasticBatchSampler(13, 4, rank=0, world=1).load_state_dict(state)


@pytest.mark.parametrize(("size", "batch"), [(0, 4), (4, 0)])
def test_nothing_to_draw_is_refused(size: int, batch: int) -> None:
    with pytest.raises(UsageError):
        ElasticBatchSampler(size, batch, rank=0, world=1)
