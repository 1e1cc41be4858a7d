"""Small trainers for tests of the adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import TrainingArguments

from elastic_runtime.transformers import ElasticOptions, ElasticTrainer

if TYPE_CHECKING:
    from pathlib import Path


class Numbers(Dataset[dict[str, Any]]):
    """Numbers, and twice as much."""

    def __init__(self, size: int = 24) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        value = torch.tensor([index / self._size])
        return {"inputs": value, "labels": 2 * value}


class Line(nn.Module):
    """Learns that."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.net(inputs)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    """Arguments that show nothing and save nothing of the ``Trainer``'s own."""
    quiet = {
        "output_dir": str(folder / "out"),
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "per_device_train_batch_size": 4,
    }
    return TrainingArguments(**{**quiet, **options})


def trainer(
    folder: Path, elastic: ElasticOptions | None = None, kind: Any = ElasticTrainer, **options: Any
) -> Any:
    """A trainer of numbers.

    Args:
        folder: for all that it writes.
        elastic: its options.
        kind: its class.
        **options: of the class, or of the arguments.
    """
    named = (
        "model",
        "callbacks",
        "eval_dataset",
        "train_dataset",
        "compute_loss_func",
        "optimizers",
    )
    own = {name: options.pop(name) for name in named if name in options}
    parts = {"model": Line(), "train_dataset": Numbers(), **own}
    return kind(args=arguments(folder, **options), elastic=elastic, **parts)
