"""The benchmark's job under ``ElasticTrainer``: ``BENCH_HF`` is ``in-place`` or ``restart``."""

from __future__ import annotations

import os
from functools import partial

from train_hf import made
from workload import BATCH, SAVE_EVERY

from elastic_runtime.transformers import ElasticOptions, ElasticTrainer


def main() -> None:
    """Trains until ``--steps`` are done or somebody ends it."""
    place = os.environ["BENCH_HF"] == "in-place"
    every = "30s" if place else SAVE_EVERY
    elastic = ElasticOptions(every=every, in_place=place, global_batch=2 * BATCH)
    trainer, _ = made(partial(ElasticTrainer, elastic=elastic), saves=False)
    trainer.train()


if __name__ == "__main__":
    main()
