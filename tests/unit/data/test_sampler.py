"""The order of the samples does not know how many ranks there are; also one of the user's own."""

from __future__ import annotations

import collections
import itertools
import json
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset, WeightedRandomSampler

from elastic_runtime.data.sampler import ElasticBatchSampler, share_of
from elastic_runtime.errors import UsageError
from tests.unit.data.play import Job, Life, world_of


def reversed_halves(epoch: int, rng: torch.Generator) -> list[int]:
    """A permutation that is not random, and another one in each epoch."""
    numbers = list(range(24))
    return numbers[epoch % 24 :][::-1] + numbers[: epoch % 24]


def with_replacement(epoch: int, rng: torch.Generator) -> torch.Tensor:
    """More or fewer draws than there are samples, depending on the epoch."""
    return torch.randint(0, 24, (20 + 3 * (epoch % 4),), generator=rng)


JOBS = st.one_of(
    st.builds(Job, st.integers(1, 60), st.integers(1, 20), st.integers(-(2**31), 2**31)),
    st.integers(1, 60).flatmap(
        lambda size: st.builds(
            Job, st.just(size), st.integers(1, size), options=st.just({"drop_last": True})
        )
    ),
    st.builds(
        Job,
        st.just(24),
        st.integers(1, 10),
        st.integers(0, 9),
        options=st.builds(
            lambda order, drop_last: {**order, "drop_last": drop_last},
            st.sampled_from(
                [{"order": reversed_halves}, {"order": with_replacement, "replacement": True}]
            ),
            st.booleans(),
        ),
    ),
)
LIVES = st.lists(st.builds(Life, st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=6)


@given(st.integers(0, 100), st.integers(1, 9))
def test_shares_are_disjoint_complete_and_even(count: int, world: int) -> None:
    shares = [share_of(count, rank, world) for rank in range(world)]
    assert [i for first, end in shares for i in range(first, end)] == list(range(count))
    sizes = [end - first for first, end in shares]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=300)
@given(job=JOBS, lives=LIVES, epochs=st.integers(1, 3))
def test_resizes_do_not_change_the_sequence(job: Job, lives: list[Life], epochs: int) -> None:
    """Lives of any world, saved and resumed in between, are one undisturbed run."""
    assert job.play(lives, epochs) == job.alone(epochs)


@given(job=JOBS, lives=LIVES)
def test_an_epoch_is_exactly_the_data_set(job: Job, lives: list[Life]) -> None:
    steps = job.play(lives, 1)
    seen = collections.Counter(sample for step in steps for sample in step)
    drops = job.options.get("drop_last", False)
    if "replacement" in job.options:
        expected = collections.Counter(job.loader().batch_sampler._orders.of(job.seed, 0).tolist())
        assert seen <= expected
        assert expected.total() - seen.total() < (job.batch if drops else 1)
    else:
        assert set(seen.values()) == {1}
        assert len(seen) == (job.size // job.batch * job.batch if drops else job.size)
    assert [len(step) for step in steps[:-1]] == [job.batch] * (len(steps) - 1)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    runs = [[i for step in Job(50, 10, seed).alone(2) for i in step] for seed in (0, 1)]
    halves = {tuple(half) for run in runs for half in (run[:50], run[50:])}
    assert len(halves) == 4


def test_the_length_is_that_of_the_rest_of_the_epoch() -> None:
    whole = ElasticBatchSampler(11, 4, rank=0, world=1)
    cut = ElasticBatchSampler(11, 4, drop_last=True, rank=0, world=1)
    lengths = []
    for _ in range(3):
        lengths.append((len(whole), len(list(whole)), len(cut), len(list(cut))))
        whole.commit()
        cut.commit()
    assert lengths == [(3, 3, 2, 2), (2, 2, 1, 1), (1, 1, 2, 2)]
    assert ((whole.epoch, whole.cursor), (cut.epoch, cut.cursor)) == ((1, 0), (1, 4))


def test_another_world_takes_other_shares() -> None:
    sampler = ElasticBatchSampler(8, 4, rank=0, world=1)
    whole = next(iter(sampler))
    sampler.enter(world_of(1, 2))
    assert next(iter(sampler)) == whole[2:]
    assert sampler.place == (1, 2)


def test_without_a_group_the_launcher_says_which_rank_this_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks that make their sampler too early must not train on the same samples."""
    sampler = ElasticBatchSampler(8, 4)
    assert sampler.place == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert sampler.place == (2, 4)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert sampler.place == (0, 1)
    finally:
        dist.destroy_process_group()


# Going on with other settings


def position(cursor: int, **options: Any) -> dict[str, Any]:
    sampler = ElasticBatchSampler(12, 4, rank=0, world=1, **options)
    sampler.epoch, sampler.cursor = 1, cursor
    state: dict[str, Any] = json.loads(json.dumps(sampler.state_dict()))
    return state


def test_the_batch_may_change_in_the_middle_of_an_epoch() -> None:
    begun = Job(12, 4).alone(2)[3]
    sampler = ElasticBatchSampler(12, 3, seed=5, rank=0, world=1)
    sampler.load_state_dict(position(4))
    rest = list(sampler)
    assert [len(batch) for batch in rest] == [3, 3, 2]
    assert sorted(begun + [i for batch in rest for i in batch]) == list(range(12))


@pytest.mark.parametrize(("batch", "drop_last"), [(5, True), (5, False), (12, True)])
def test_what_is_left_may_be_too_small_for_the_new_batch(batch: int, drop_last: bool) -> None:
    sampler = ElasticBatchSampler(12, batch, drop_last=drop_last, rank=0, world=1)
    sampler.load_state_dict(position(8))
    assert (sampler.epoch, sampler.cursor) == ((2, 0) if drop_last else (1, 8))
    assert len(sampler) > 0


def test_other_data_are_taken_at_the_beginning_of_an_epoch_only() -> None:
    sampler = ElasticBatchSampler(13, 4, rank=0, world=1)
    with pytest.raises(UsageError, match=r"4 samples into epoch 1 .* of 12 samples.* has 13"):
        sampler.load_state_dict(position(4))
    sampler.load_state_dict(position(0))
    assert sampler.epoch == 1
    assert sorted(i for batch in sampler for i in batch) == list(range(13))


def test_another_order_in_the_middle_of_an_epoch_is_refused() -> None:
    other = ElasticBatchSampler(12, 4, order=lambda epoch, rng: range(12), rank=0, world=1)
    with pytest.raises(UsageError, match="another order here; give the same order="):
        other.load_state_dict(position(4))
    assert (other.epoch, other.cursor) == (0, 0)
    other.load_state_dict(position(0))
    assert next(iter(other)) == [0, 1, 2, 3]


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": 0}, "0 samples, of which a step has 4"),
        ({"batch_size": 0}, "at least 1 of each"),
        ({"batch_size": 13, "drop_last": True}, "leaves nothing of 12 samples"),
        ({"replacement": True}, "order= of your own"),
        ({"rank": 2, "world": 2}, "rank=2 of world=2"),
        ({"rank": 0, "world": None}, "give both"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ElasticBatchSampler(**{"data": 12, "batch_size": 4, "rank": 0, "world": 1, **arguments})


SIX = [6, TensorDataset(torch.zeros(6)), [0] * 6, torch.zeros(6)]


@pytest.mark.parametrize("data", SIX)
def test_a_data_set_stands_for_its_length(data: Any) -> None:
    """And the order of a seed stays what it is: a run that is resumed with a later version goes on
    in the middle of an epoch."""
    sampler = ElasticBatchSampler(data, batch_size=3, rank=0, world=1)
    assert list(sampler) == [[1, 5, 4], [2, 3, 0]]
    sampler.commit()
    said = "ElasticBatchSampler(6, batch_size=3, seed=0; epoch 0, cursor 3, rank 0 of 1)"
    assert repr(sampler) == said


# Orders of the user's own: weighted, grouped by length, or wrong


def sampler_of(order: Any, **options: Any) -> ElasticBatchSampler:
    return ElasticBatchSampler(6, 4, order=order, rank=0, world=1, **options)


def epoch_of(sampler: ElasticBatchSampler) -> list[int]:
    return [index for batch in sampler for index in batch]


@pytest.mark.parametrize(
    "kind",
    [list, tuple, iter, torch.tensor, numpy.array, lambda i: torch.tensor(i, dtype=torch.int32)],
)
def test_any_row_of_whole_numbers_is_an_order(kind: Any) -> None:
    assert epoch_of(sampler_of(lambda epoch, rng: kind([5, 3, 1, 0, 2, 4]))) == [5, 3, 1, 0, 2, 4]


def test_the_generator_knows_seed_and_epoch() -> None:
    def drawn(seed: int, epoch: int) -> tuple[int, ...]:
        sampler = sampler_of(lambda epoch, rng: torch.randperm(6, generator=rng), seed=seed)
        sampler.epoch = epoch
        return tuple(epoch_of(sampler))

    places = list(itertools.product((0, 1), range(3)))
    assert len({drawn(*place) for place in places}) == 6
    assert drawn(1, 2) == drawn(1, 2)


def test_a_sampler_of_torch_with_the_generator_is_an_order() -> None:
    weights = [0.0, 1.0, 1.0, 0.0, 9.0, 1.0]
    sampler = sampler_of(
        lambda epoch, rng: WeightedRandomSampler(weights, 100, generator=rng), replacement=True
    )
    drawn = epoch_of(sampler)
    assert len(drawn) == 100
    assert len(sampler) == 25
    assert not {0, 3} & set(drawn)
    assert drawn.count(4) > 50


def test_a_list_that_is_shuffled_in_place_stays_as_it_was_given() -> None:
    numbers = torch.arange(6)
    sampler = sampler_of(lambda epoch, rng: numbers)
    batches = iter(sampler)
    first = next(batches)
    numbers.fill_(0)
    assert sorted(first + next(batches)) == list(range(6))


@pytest.mark.parametrize(
    ("order", "options", "message"),
    [
        ([0, 1, 2, 3, 4, 6], {}, "names sample 6, and the data set has 6"),
        ([-1, 0, 1, 2, 3, 4], {}, "names sample -1"),
        ([6], {"replacement": True}, "names sample 6"),
        ([0, 1, 2, 3, 4], {}, "5 samples of 6: 1 do not come, 0 more than once"),
        ([0, 1, 2, 3, 4, 4], {}, "1 do not come, 1 more than once; .*replacement=True"),
        ([], {}, "is empty"),
        *(
            (odd, {}, "else than whole numbers")
            for odd in ([0.0], ["a"], None, [[0, 1], [2, 3]], torch.ones(6, dtype=torch.bool))
        ),
        (
            [1, 2, 3],
            {"replacement": True, "drop_last": True},
            "epoch 0 has 3 samples, and drop_last leaves nothing",
        ),
    ],
)
def test_what_is_no_order_is_refused(order: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        iter(sampler_of(lambda epoch, rng: order, **options))


def test_an_order_that_is_another_one_each_time_is_refused() -> None:
    orders = itertools.cycle([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
    sampler = sampler_of(lambda epoch, rng: next(orders))
    with pytest.raises(UsageError, match="another one each time"):
        iter(sampler)


def test_the_order_is_asked_for_once_an_epoch() -> None:
    asked: list[int] = []

    def order(epoch: int, rng: torch.Generator) -> range:
        asked.append(epoch)
        return range(6)

    sampler = sampler_of(order)
    for _ in range(4):
        list(sampler)
        sampler.commit()
        sampler.state_dict()
    assert asked == [0, 0, 1]  # the first one twice, to see whether it is the same
