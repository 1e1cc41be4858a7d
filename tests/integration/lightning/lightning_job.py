"""A job under Lightning's ``Trainer`` whose history can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from elastic_runtime.data.sampler import ElasticBatchSampler
from tests.integration.trainers.trainer_job import GLOBAL_BATCH, SAMPLES, SEED, TrainerJob


class LightningJob(TrainerJob):
    """One ``elastic-run`` of the script."""

    script = Path(__file__).with_name("scripts") / "trainer.py"
    same_training: ClassVar = {"restarted": "usual", "sharded": "usual"}
    free_batches: ClassVar = ("growing", "accumulated-by-hand")

    def shares_of(self, rank: int, size: int) -> list[list[list[int]]]:
        """What a rank notes of each step: its last micro-batch."""
        return _shares(rank, size, 3 if self._kind == "accumulated" else 1)


def _shares(rank: int, size: int, pieces: int) -> list[list[list[int]]]:
    """The indices of a rank's last micro-batch in each step, for each of many epochs."""
    sampler = ElasticBatchSampler(SAMPLES, GLOBAL_BATCH, seed=SEED, rank=rank, world=size)
    epochs = []
    for epoch in range(30):
        sampler.epoch, sampler.cursor = epoch, 0
        given = [list(batch) for batch in sampler]
        last = [given[min(at + pieces, len(given)) - 1] for at in range(0, len(given), pieces)]
        epochs.append(last)
    return epochs
