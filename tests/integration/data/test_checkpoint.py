"""Samplers and streams as entries of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch.utils.data import IterableDataset

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.worker import context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Numbers(IterableDataset[int]):
    """From 0 to 9."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.fixture(autouse=True)
def _fresh_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A checkpointer without an agent listens to SIGTERM; the tests' own process must not."""
    monkeypatch.setattr(context, "_context", None)
    yield
    context.context().refuse_leave_requests()


def sampler_of(size: int) -> elastic.ElasticBatchSampler:
    return elastic.ElasticBatchSampler(size, 4, rank=0, world=1)


def save_after(steps: int, folder: Path, sampler: elastic.ElasticBatchSampler) -> None:
    ckpt = elastic.Checkpointer(folder, {"model": "trained", "sampler": sampler})
    for _ in range(steps):
        ckpt.step()
    ckpt.save()
    ckpt.close()


def test_a_step_of_the_checkpointer_commits_a_stream(tmp_path: Path) -> None:
    loader = elastic.loader(Numbers(), batch=4, at_least_once=True)
    ckpt = elastic.Checkpointer(tmp_path, {"loader": loader})
    batches = iter(loader)
    for _ in range(2):
        next(batches)
        ckpt.step()
    ckpt.save()
    ckpt.close()

    loader = elastic.loader(Numbers(), batch=4, at_least_once=True)
    ckpt = elastic.Checkpointer(tmp_path, {"loader": loader})
    assert ckpt.resume() == 2
    for batch in loader:
        assert batch.tolist() == [8, 9]
        ckpt.step()
    ckpt.close()
    assert loader.state_dict() == {"epoch": 1, "cursor": 0}


def test_other_data_are_refused_when_the_job_resumes(tmp_path: Path) -> None:
    save_after(1, tmp_path, sampler_of(12))
    ckpt = elastic.Checkpointer(tmp_path, {"model": "", "sampler": sampler_of(13)})
    with pytest.raises(UsageError, match="12 samples, this one has 13"):
        ckpt.resume()
    ckpt.close()


def test_an_epoch_can_be_given_up(tmp_path: Path) -> None:
    """What docs/data.md says to do after that error."""
    save_after(4, tmp_path, sampler_of(12))
    sampler = sampler_of(13)
    ckpt = elastic.Checkpointer(tmp_path, {"model": "", "sampler-2": sampler})
    assert ckpt.resume(strict=False) == 4
    ckpt.close()
    sampler.epoch = 2
    assert sorted(index for batch in sampler for index in batch) == list(range(13))
