"""The benchmark's job with torchtitan: ``BENCH_TORCHTITAN`` says how it outlives a fault.

``plain`` is torchtitan as it comes, with its own checkpoint manager and loader; ``restart`` is the
same config, made elastic. torchtitan wants an accelerator: it is given the CPU as one, as in tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[3] / "tests/integration/torchtitan/scripts")
)

import cpu_device
from datasets import Dataset
from torchtitan import train
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets import DatasetConfig, text_datasets
from torchtitan.trainer import Trainer
from workload import SAVE_EVERY, STEP_SECONDS, StepLog, hold_ballast

from elastic_runtime.torchtitan import elastic

WORDS, LENGTH = 256, 16


class Numbers(BaseTokenizer):
    """A sequence of tokens for each number."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()
        self.eos_id = 0

    def encode(self, text: str, **_: Any) -> list[int]:
        return [1 + (int(text) + place) % (WORDS - 1) for place in range(LENGTH + 1)]

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return WORDS


text_datasets.DATASETS["numbers"] = DatasetConfig(
    path="-",
    loader=lambda path: Dataset.from_dict({"text": [str(n) for n in range(4096)]}),
    sample_processor=lambda sample: sample["text"],
)


class LoggingTrainer(Trainer):
    """Notes each step when its save has begun, as the other scripts do."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        notes: str = ""

    def train_step(self, data_iterator: Any) -> None:
        super().train_step(data_iterator)
        time.sleep(STEP_SECONDS)

    def train(self) -> None:
        load, save = self.checkpointer.load, self.checkpointer.save
        log: list[StepLog] = []

        def loaded(step: int) -> bool:
            found = load(step=step)
            log.append(StepLog(self.config.notes, first_step=self.step))
            return bool(found)

        def noted(step: int, **given: Any) -> bool:
            log[0].completed(step - 1)
            return bool(save(step, **given))

        self.checkpointer.load, self.checkpointer.save = loaded, noted
        super().train()


def small() -> Trainer.Config:
    """A model of two layers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True, help="directory for the logs of steps")
    parser.add_argument("--checkpoint", required=True, help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=1 << 20)
    args = parser.parse_args(WORDS_GIVEN)
    spec = cpu_device.small_model(WORDS)
    config = LoggingTrainer.Config(
        model_spec=spec,
        notes=args.notes,
        loss=CrossEntropyLoss.Config(global_vocab_size=WORDS),
        dump_folder=args.checkpoint,
        tokenizer=Numbers.Config(),
        dataloader=text_datasets.HuggingFaceTextDataLoader.Config(dataset="numbers"),
        optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2, total_steps=1 << 20),
        training=TrainingConfig(
            local_batch_size=2, global_batch_size=12, seq_len=LENGTH, steps=args.steps
        ),
        metrics=MetricsProcessor.Config(log_freq=1 << 30),
        parallelism=ParallelismConfig(),
    )
    config.checkpoint.enable = True
    config.checkpoint.interval = SAVE_EVERY
    config.checkpoint.keep_latest_k = 2
    return cpu_device.for_cpu(config)


def made_elastic() -> Trainer.Config:
    """The same job, elastic."""
    return elastic(small(), snapshots="")


if __name__ == "__main__":
    hold_ballast()
    WORDS_GIVEN = sys.argv[1:]
    sys.modules["bench_job"] = sys.modules["__main__"]
    config = "made_elastic" if os.environ.get("BENCH_TORCHTITAN") == "restart" else "small"
    sys.argv[1:] = ["--module", "bench_job", "--config", config]
    train.main()
