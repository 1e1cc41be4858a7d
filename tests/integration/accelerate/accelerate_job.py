"""A job with accelerate and a loop of its own, whose history can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from elastic_runtime.data.sampler import ElasticBatchSampler
from tests.integration.trainers.trainer_job import GLOBAL_BATCH, SAMPLES, SEED, TrainerJob


class AccelerateJob(TrainerJob):
    """One ``elastic-run`` of the script."""

    script = Path(__file__).with_name("scripts") / "own_loop.py"
    same_training: ClassVar = {"restarted": "usual"}

    def shares_of(self, rank: int, size: int) -> list[list[list[int]]]:
        """What a rank notes of each step: all its micro-batches."""
        batch, at_once = (12, 2) if self._kind == "accumulated" else (GLOBAL_BATCH, None)
        sampler = ElasticBatchSampler(
            SAMPLES, batch, at_once=at_once, seed=SEED, rank=rank, world=size
        )
        epochs = []
        for epoch in range(30):
            sampler.epoch, sampler.cursor = epoch, 0
            left, steps = iter(sampler), []
            for step in range(-(-SAMPLES // batch)):
                pieces = sampler.pieces_in(min(batch, SAMPLES - step * batch))
                steps.append([index for _ in range(pieces) for index in next(left)])
            epochs.append(steps)
        return epochs
