"""A small ``Trainer`` that is about to fit, without a launcher and without files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from elastic_runtime.lightning.elastic_strategy import ElasticStrategy

if TYPE_CHECKING:
    from pathlib import Path


class Line(LightningModule):
    """Learns to double a number."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (inputs,) = batch if isinstance(batch, list | tuple) else (batch,)
        loss = (self.net(inputs[:, None]) - 2 * inputs[:, None]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def numbers(size: int = 40) -> torch.Tensor:
    """A data set of numbers."""
    return torch.linspace(-1, 1, size)


def loader(**options: Any) -> DataLoader[Any]:
    """Of these numbers, as users make it."""
    return DataLoader(numbers(), **{"batch_size": 8, **options})


def trainer(folder: Path, strategy: ElasticStrategy | None = None, **options: Any) -> Trainer:
    """A quiet one."""
    return Trainer(
        strategy=strategy or ElasticStrategy(folder / "job"),
        accelerator="cpu",
        devices=1,
        default_root_dir=str(folder),
        **{
            "max_epochs": 2,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        },
    )


def connected(folder: Path, **options: Any) -> Trainer:
    """One that knows its module."""
    made, module = trainer(folder, **options), Line()
    made.strategy.connect(module)
    made.strategy.lightning_module.trainer = made
    return made
