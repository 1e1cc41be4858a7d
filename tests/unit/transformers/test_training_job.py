"""A Trainer's job in one process: what a loss counts, and what follows what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from elastic_runtime.transformers.elastic_options import ElasticOptions
from elastic_runtime.transformers.training_job import TrainingJob
from tests.unit.transformers.hf_trainers import trainer

if TYPE_CHECKING:
    from pathlib import Path


def job(folder: Path, rank: int = 0, world: int = 1, **options: Any) -> TrainingJob:
    """One that is about to train, with steps of 10 samples, as one of some ranks."""
    made = trainer(folder, **options)
    begun = TrainingJob(made, ElasticOptions(global_batch=10), None, None)
    begun.data.enter(world)
    begun.data.sampler._place = rank, world
    made.current_gradient_accumulation_steps = begun.data.pieces
    return begun


def weights(begun: TrainingJob, labels: Any = None) -> list[float]:
    """Those of the micro-batches of a step."""
    found, begun._piece = [], 0
    for _ in range(begun.data.pieces):
        with begun.piece({"labels": torch.ones(4, 3)}, labels):
            found.append(begun.weight())
    return found


@pytest.mark.parametrize("world", [1, 2, 3])
def test_means_make_up_the_mean_over_the_step(tmp_path: Path, world: int) -> None:
    jobs = [job(tmp_path, rank, world) for rank in range(world)]
    shares = [[w / each.data.pieces for w in weights(each)] for each in jobs]
    assert sum(map(sum, shares)) / world == pytest.approx(1)
    # 10 samples, of which each rank takes 4 at once.
    assert shares[0][0] * 10 == pytest.approx(4 * world)


def test_what_counts_its_labels_is_right_as_it_is(tmp_path: Path) -> None:
    begun = job(tmp_path, 0, 2, compute_loss_func=lambda *_, **__: None)
    assert weights(begun, labels=7) == [1.0] * begun.data.pieces
    begun.trainer.loss_is_scaled_for_ga = False  # the user says that it is a mean all the same
    assert weights(begun, labels=7) == weights(begun)


def test_a_mean_over_a_ranks_own_labels_counts_as_its_share(tmp_path: Path) -> None:
    options = {"average_tokens_across_devices": False}
    begun = job(tmp_path, 0, 3, compute_loss_func=lambda *_, **__: None, **options)
    assert weights(begun, labels=7)[0] == pytest.approx(4 / 10 * 3)


def test_the_schedule_follows_from_the_global_batch(tmp_path: Path) -> None:
    found = {
        job(tmp_path, per_device_train_batch_size=at_once, gradient_accumulation_steps=k)._max_steps
        for at_once, k in ((1, 1), (4, 1), (2, 5), (8, 3))
    }
    assert found == {3 * 3}  # of 24 samples, in three epochs


def test_it_trains_alone(tmp_path: Path) -> None:
    made = trainer(tmp_path, ElasticOptions(global_batch=8, in_place=False, every="1h"))
    assert made.train().global_step == 9
    assert made.args.gradient_accumulation_steps == 1
    assert made._elastic_job is None
