"""A job of torchtitan's, as ``torchtitan.train`` runs it; ``--kind`` names what is special."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2] / "in_place" / "scripts"))
import cpu_device
import torch
from datasets import Dataset
from noting import Notes, options
from torch.distributed.elastic.utils.distributed import get_free_port as free_port
from torch.distributed.tensor import distribute_tensor
from torchtitan import train
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets import DatasetConfig, text_datasets
from torchtitan.trainer import Trainer

import elastic_runtime as elastic
from elastic_runtime.torchtitan import elastic as made_elastic

if TYPE_CHECKING:
    from collections.abc import Callable

args = options()
notes = Notes(args.folder)
STEPS = int(os.environ.get("MAX_STEPS") or 0) or 60
SAMPLES, GLOBAL_BATCH, LOCAL_BATCH, LENGTH = 203, 10, 2, 16
VOCABULARY = 256
LAST = {"finite": 21}  # the step with which a job ends otherwise


class Numbers(BaseTokenizer):
    """Makes the tokens of a document of its number: as many as a sequence has, or fewer."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()
        self.eos_id = 0

    def encode(self, text: str, **_: Any) -> list[int]:
        number = int(text)
        length = LENGTH + 1 if args.kind != "packed" else 5 + number * 7 % 40
        return [1 + (number * 31 + place * place * 17) % 255 for place in range(length)]

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return VOCABULARY


def documents(path: str) -> Dataset:
    return Dataset.from_dict({"text": [str(number) for number in range(SAMPLES)]})


text_datasets.DATASETS["numbers"] = DatasetConfig(
    path="-", loader=documents, sample_processor=lambda sample: sample["text"]
)


class NotingTrainer(Trainer):
    """Notes what counts in each step, and is as slow as the test asks for."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # On CPUs the first weights would depend on how many ranks there are.
        draws = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for value in self.model_parts[0].parameters():
                whole = torch.randn(value.shape, generator=draws) * 0.05
                if hasattr(value, "device_mesh"):
                    whole = distribute_tensor(whole, value.device_mesh, value.placements)
                value.copy_(whole)
        self.rows: list[list[int]] = []
        round = int(os.environ.get("ELASTIC_ROUND") or 0)
        self.world = replace(elastic.World.of_environment(os.environ), round=round)

    def post_dataloading_process(self, input_dict: Any, labels: Any) -> Any:
        self.rows += [row.tolist() for row in labels if (row != IGNORE_INDEX).any()]
        return super().post_dataloading_process(input_dict, labels)

    def train_step(self, data_iterator: Any) -> None:
        self.rows = []
        super().train_step(data_iterator)
        notes.say("trained", self.world, step=self.step, rows=self.rows)
        while not notes.has("enough") and self.step == min(STEPS, LAST.get(args.kind, STEPS)) - 5:
            time.sleep(0.05)  # the test is not through yet
        if not notes.has("enough"):
            time.sleep(args.seconds)

    def train(self) -> None:
        save = self.checkpointer.save

        def noting(step: int, **given: Any) -> bool:
            saved = save(step, **given)
            notes.say("step", self.world, step=step)
            return bool(saved)

        self.checkpointer.save = noting
        super().train()
        weights = {}
        for name, value in self.model_parts[0].state_dict().items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            weights[name] = whole.flatten()[:64].tolist()
        tokens = self.ntokens_seen * (self.world.size if self.parallel_dims.tp == 1 else 1)
        notes.say("ended", self.world, step=self.step, weights=weights, tokens=tokens, digest=0)


def small() -> Trainer.Config:
    """A model of two layers that learns numbers."""
    spec = cpu_device.small_model(VOCABULARY)
    config = NotingTrainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
        dump_folder=args.folder,
        tokenizer=Numbers.Config(),
        dataloader=text_datasets.HuggingFaceTextDataLoader.Config(dataset="numbers"),
        optimizer=default_adamw(lr=1e-3, eps=1e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2, total_steps=100),
        training=TrainingConfig(
            local_batch_size=LOCAL_BATCH,
            global_batch_size=GLOBAL_BATCH,
            seq_len=LENGTH,
            steps=STEPS,
        ),
        metrics=MetricsProcessor.Config(log_freq=1000),
        parallelism=ParallelismConfig(),
    )
    config.debug.seed = 1
    config.checkpoint.interval = 10
    config.checkpoint.last_save_model_only = False
    return cpu_device.for_cpu(config)


def packed() -> Trainer.Config:
    """Documents of many lengths, read by processes."""
    config = made_elastic(small())
    config.dataloader.num_workers = 2
    return config


def finite() -> Trainer.Config:
    """Data that end before the steps do."""
    config = small()
    config.dataloader.infinite = False
    return config


KINDS: dict[str, Callable[[], Trainer.Config]] = {"packed": packed, "finite": finite}

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}

if __name__ == "__main__":
    if "RANK" not in os.environ:
        os.environ.update(ALONE, MASTER_PORT=str(free_port()))
    sys.modules["titan_jobs"] = sys.modules["__main__"]
    function = KINDS.get(args.kind, small).__name__
    module = ["--module", "elastic_runtime.torchtitan", "--config", f"titan_jobs.{function}"]
    if args.kind == "theirs":  # without anything of ours
        module = ["--module", "titan_jobs", "--config", function]
    sys.argv[1:] = [*module, *os.environ.get("TITAN_OPTIONS", "").split()]
    train.main()
