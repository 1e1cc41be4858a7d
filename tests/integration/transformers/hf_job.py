"""A job under Hugging Face's ``Trainer`` whose history can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from elastic_runtime.data.sampler import ElasticBatchSampler
from tests.integration.trainers.trainer_job import GLOBAL_BATCH, SAMPLES, SEED, TrainerJob


class HuggingFaceJob(TrainerJob):
    """One ``elastic-run`` of the script."""

    script = Path(__file__).with_name("scripts") / "hf_trainer.py"
    same_training: ClassVar = {"restarted": "usual"}

    def shares_of(self, rank: int, size: int) -> list[list[list[int]]]:
        """What a rank notes of each step: all its micro-batches, each as large as it may be."""
        accumulated = self._kind == "accumulated"
        batch, at_once = (12, 2) if accumulated else (GLOBAL_BATCH, 5)
        sampler = ElasticBatchSampler(
            SAMPLES, batch, at_once=at_once, seed=SEED, rank=rank, world=size
        )
        epochs = []
        for epoch in range(30):
            sampler.epoch, sampler.cursor = epoch, 0
            left, steps = iter(sampler), []
            for step in range(-(-SAMPLES // batch)):
                pieces = -(-min(batch, SAMPLES - step * batch) // (at_once * size))
                steps.append([index for _ in range(pieces) for index in next(left)])
            epochs.append(steps)
        return epochs
