"""accelerate is not let share out what a sampler of ours has shared out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = torch.arange(40)


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
    sampler = elastic.ElasticBatchSampler(DATA, 8, rank=0, world=ranks)
    loader = DataLoader(DATA, batch_sampler=sampler, num_workers=workers)
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
    assert sum(len(batch) for batch in prepared(1)) == len(DATA)


def test_other_loaders_may_be_split(two_ranks: None) -> None:
    loader = prepare_data_loader(
        DataLoader(DATA, batch_size=4), torch.device("cpu"), num_processes=2, process_index=0
    )
    assert sum(len(batch) for batch in loader) == len(DATA) // 2


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_not_skipped(two_ranks: None, workers: int) -> None:
    loader = prepared(1, workers)
    with pytest.raises(UsageError, match="the sampler begins where the job is"):
        next(iter(skip_first_batches(loader, 2)))
    assert len(next(iter(skip_first_batches(loader, 0)))) == 8
