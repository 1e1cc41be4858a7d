"""Loaders: which batches they give, also of iterable data, what is refused; random numbers."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

import elastic_runtime as elastic
from elastic_runtime.data import sample_seeds
from elastic_runtime.data.loader import loader
from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import UsageError
from tests.unit.data.play import Life, played, world_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elastic_runtime.data.stream import StreamLoader
    from tests.unit.data.play import Step

DATA = TensorDataset(torch.arange(8))


def sampler(rank: int = 0, world: int = 1) -> ElasticBatchSampler:
    return ElasticBatchSampler(8, 4, rank=rank, world=world)


class Numbers(IterableDataset[int]):
    """0, 1, 2, … in an order that depends on the epoch."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        start = self.epoch % max(1, self.size)
        return iter([*range(start, self.size), *range(start)])


class Foreign:
    """Iterable, but not torch's."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_each_rank_gets_its_share_of_each_global_batch() -> None:
    shares = [
        [batch[0].tolist() for batch in loader(DATA, sampler(rank, world=2))] for rank in (0, 1)
    ]
    assert [len(share) for share in shares[0]] == [2, 2]
    assert sorted(n for share in shares for batch in share for n in batch) == list(range(8))


def test_processes_are_kept_only_where_there_are_any() -> None:
    assert not loader(DATA, sampler()).persistent_workers


NUMBERED: dict[str, Any] = {"dataset": DATA, "sampler": sampler()}
STREAMED: dict[str, Any] = {"dataset": Numbers(3), "at_least_once": True, "batch": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": DATA}, "as its second argument, not a NoneType"),
        ({"dataset": DATA, "sampler": 4}, "needs an ElasticBatchSampler as .*, not a int"),
        (NUMBERED | {"shuffle": True, "drop_last": True}, "leaves drop_last, shuffle to the samp"),
        (NUMBERED | {"in_order": False}, "in_order=False"),
        *(
            (NUMBERED | {name: 2}, "give them to ElasticBatchSampler")
            for name in ("batch", "batch_size", "seed")
        ),
        (NUMBERED | {"at_least_once": True}, "at_least_once=True is for iterable data"),
        (STREAMED | {"dataset": DATA}, "give loader.. an ElasticBatchSampler"),
        (STREAMED | {"sampler": sampler()}, "without a sampler"),
        (STREAMED | {"batch": None}, "in global batches of batch_size="),
        (STREAMED | {"drop_last": True}, "leaves drop_last"),
        (STREAMED | {"batch_size": 1}, "batch= is an older name"),
        ({"dataset": Numbers(3)}, "no numbered samples"),
        *((NUMBERED | {"dataset": no}, "at_least_once") for no in (Numbers(8), Foreign())),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loader(**arguments)


# Iterable data: refused, or read in global batches that know no world


def stream(size: int, batch: int, rank: int = 0, world: int = 1) -> StreamLoader:
    made = loader(Numbers(size), batch=batch, at_least_once=True)
    made.enter(world_of(rank, world))
    return made


def play(size: int, batch: int, lives: list[Life], epochs: int) -> list[Step]:
    """Goes through lives until done; the samples of each global batch, sorted."""
    steps = played(lives, epochs, lambda rank, world, _: stream(size, batch, rank, world), itself)
    return [sorted(step) for step in steps]


def itself(stream: StreamLoader) -> StreamLoader:
    """It is a loader itself."""
    return stream


@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 12),
    lives=st.lists(
        st.builds(Life, st.integers(1, 4), st.integers(1, 6), st.integers(0, 4)),
        min_size=1,
        max_size=4,
    ),
)
def test_a_stream_that_repeats_itself_counts_each_sample_once(
    size: int, batch: int, lives: list[Life]
) -> None:
    steps = play(size, batch, lives, 2)
    assert steps == play(size, batch, [Life(1, 1 << 30)], 2)
    half = len(steps) // 2
    for epoch in (steps[:half], steps[half:]):
        assert sorted(i for step in epoch for i in step) == list(range(size))


def test_reading_ahead_does_not_commit() -> None:
    made = stream(10, 4)
    with pytest.raises(UsageError, match="none has been taken"):
        _ = made.loss_scale
    batches = iter(made)
    next(batches)
    next(batches)
    assert made.state_dict() == {"epoch": 0, "cursor": 0}
    made.commit()
    assert made.state_dict() == {"epoch": 0, "cursor": 4}
    assert next(iter(made)).tolist() == [4, 5, 6, 7]
    made.commit()
    made.commit()  # a step without a batch moves nothing
    assert made.cursor == 8


def test_its_samples_have_random_numbers_of_their_own() -> None:
    class Noise(Numbers):
        def __iter__(self) -> Iterator[int]:
            return (elastic.sample_rng(i).initial_seed() for i in super().__iter__())

    loaders = [loader(Noise(3), batch=1, at_least_once=True, seed=seed) for seed in (1, 5)]
    for made in loaders:
        made.epoch = 2
    pairs = list(zip(*loaders, strict=True))
    for number, seed in enumerate((1, 5)):
        assert [int(pair[number]) for pair in pairs] == [
            elastic.sample_rng(i, seed=seed, epoch=2).initial_seed() for i in (2, 0, 1)
        ]


def test_data_that_are_no_torch_class_are_iterable_too() -> None:
    made = loader(Foreign(), batch_size=6, at_least_once=True)
    assert [batch.tolist() for batch in made] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert repr(made) == "StreamLoader(batch_size=6; epoch 0, cursor 0, rank 0 of 1)"


@pytest.mark.parametrize("cursor", [0, 10, 12])
def test_a_stream_with_nothing_to_give_is_an_error(cursor: int) -> None:
    """Else a loop until an epoch is over would never end."""
    made = stream(10 if cursor else 0, 4)
    made.load_state_dict({"epoch": 0, "cursor": cursor})
    with pytest.raises(UsageError, match=f"no sample after the {cursor} of epoch 0"):
        next(iter(made))


# accelerate is not let share out what a sampler of ours has shared out


NUMBERS = torch.arange(40)


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What accelerate knows in one of two ranks."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    PartialState(cpu=True)
    PartialState._shared_state.update(num_processes=2)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def prepared(ranks: int, workers: int = 0, **options: Any) -> Any:
    sampler = elastic.ElasticBatchSampler(NUMBERS, 8, rank=0, world=ranks)
    loader = DataLoader(NUMBERS, batch_sampler=sampler, num_workers=workers)
    return prepare_data_loader(
        loader, torch.device("cpu"), num_processes=ranks, process_index=0, **options
    )


# Of torch's iterator, which ends before it was made.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dispatch", [False, True])
def test_a_second_split_is_refused(two_ranks: None, dispatch: bool, workers: int) -> None:
    loader = prepared(2, workers, dispatch_batches=dispatch, put_on_device=True)
    with pytest.raises(UsageError, match="split this loader over 2 ranks"):
        next(iter(loader))


def test_one_rank_has_all_of_it(two_ranks: None) -> None:
    assert sum(len(batch) for batch in prepared(1)) == len(NUMBERS)


def test_other_loaders_may_be_split(two_ranks: None) -> None:
    other = DataLoader(NUMBERS, batch_size=4)
    loader = prepare_data_loader(other, torch.device("cpu"), num_processes=2, process_index=0)
    assert sum(len(batch) for batch in loader) == len(NUMBERS) // 2


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_not_skipped(two_ranks: None, workers: int) -> None:
    loader = prepared(1, workers)
    with pytest.raises(UsageError, match="the sampler begins where the job is"):
        next(iter(skip_first_batches(loader, 2)))
    assert len(next(iter(skip_first_batches(loader, 0)))) == 8


# The random numbers of a sample are its own, whoever loads it


class Noise(Dataset[tuple[int, int]]):
    """Gives the number of each sample and the seed of its random numbers."""

    def __init__(self, size: int = 12) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, elastic.sample_rng(index).initial_seed()


def drawn(batches: Iterable[Any]) -> dict[int, int]:
    """The seed of each sample."""
    return {
        index: seed
        for numbers, noise in batches
        for index, seed in zip(numbers.tolist(), noise.tolist(), strict=True)
    }


def loader_of(data: Dataset[Any], world: int = 1, rank: int = 0, **options: Any) -> DataLoader[Any]:
    sampler = ElasticBatchSampler(
        len(data), 5, **{"seed": 3, "rank": rank, "world": world, **options}
    )
    return DataLoader(data, batch_sampler=sampler)


def test_the_world_makes_no_difference() -> None:
    alone = drawn(loader_of(Noise()))
    assert len(set(alone.values())) == 12
    for world in (2, 3):
        parts = [drawn(loader_of(Noise(), world, rank)) for rank in range(world)]
        together = {key: value for part in parts for key, value in part.items()}
        assert together == alone


def test_epochs_and_seeds_make_a_difference() -> None:
    loaders = [loader_of(Noise()), loader_of(Noise(), seed=4), loader_of(Noise())]
    loaders[2].batch_sampler.epoch = 1  # type: ignore[union-attr]
    values = [value for loader in loaders for value in drawn(loader).values()]
    assert len(set(values)) == 36


def test_data_sets_within_data_sets_know_the_epoch_too() -> None:
    """A Subset asks with numbers of its own, and not one after the other."""
    inner = Subset(Subset(Noise(30), range(10, 30)), range(2, 14))
    assert drawn(loader_of(inner)) == {
        index: elastic.sample_rng(index, seed=3, epoch=0).initial_seed() for index in range(12, 24)
    }
    both = ConcatDataset([Noise(4), Noise(6)])
    assert drawn(loader_of(both)).keys() == set(range(6))


def test_two_loaders_in_turns_keep_their_seeds() -> None:
    one, other = loader_of(Noise(), seed=1), loader_of(Noise(), seed=2)
    pairs = list(zip(one, other, strict=True))
    assert drawn(pair[0] for pair in pairs) == drawn(one)
    assert drawn(pair[1] for pair in pairs) == drawn(other)


def test_where_a_batch_arrives_its_moment_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = next(iter(ElasticBatchSampler(12, 4, seed=8, rank=0, world=1)))
    assert isinstance(batch, sample_seeds.Batch)
    sent = pickle.dumps(batch)
    monkeypatch.setattr(sample_seeds, "_present", None)
    assert pickle.loads(sent) == batch
    expected = elastic.sample_rng(2, seed=8, epoch=0)
    assert elastic.sample_rng(2).initial_seed() == expected.initial_seed()


def test_numbers_of_any_kind_name_the_same_sample() -> None:
    for index in (0, numpy.int32(0), torch.tensor(0)):
        # A run that is resumed with a later version must see the same augmentation.
        assert elastic.sample_rng(index, seed=0, epoch=0).initial_seed() == 2602329642018764132


def test_without_a_batch_the_epoch_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_seeds, "_present", None)
    for known in ({}, {"seed": 1}, {"epoch": 1}):
        with pytest.raises(UsageError, match="give it seed= and epoch="):
            elastic.sample_rng(3, **known)


def test_a_name_is_no_number() -> None:
    with pytest.raises(UsageError, match="needs a whole number, not 'cat"):
        elastic.sample_rng("cat.png", seed=0, epoch=0)  # type: ignore[arg-type]
