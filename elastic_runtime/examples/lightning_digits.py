"""Lightning's ``Trainer`` learns handwritten digits, on any number of workers.

::

    python -m elastic_runtime.examples.lightning_digits
    elastic-run --min 1 --max 4 -m elastic_runtime.examples.lightning_digits --dir runs/lightning

Nothing in it but the strategy is ours. Kill a worker or a node while it runs, or let another one
join: the others go on within a tenth of a second, and each digit still counts once an epoch. It
needs ``pip install 'elastic-runtime[examples,lightning]'``.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from elastic_runtime.examples.digits import digits, network
from elastic_runtime.lightning import ElasticStrategy


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="learn handwritten digits with Lightning")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, over all workers")
    parser.add_argument("--dir", default="runs/lightning", help="where checkpoints go")
    parser.add_argument("--every", default="30s", help="how often to save: '10 steps', '30s'")
    parser.add_argument("--step-ms", type=float, default=0.0, help="take at least so long a step")
    return parser.parse_args()


class Digits(LightningModule):  # type: ignore[misc]  # Lightning is not typed here
    """The network, its loss and its optimizer."""

    def __init__(self, step_ms: float) -> None:
        """Takes the least length of a step, in milliseconds; it is for demonstrations."""
        super().__init__()
        self.network = network()
        self._step_seconds = step_ms / 1000

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """The mean loss of this worker's share of a batch."""
        inputs, targets = batch
        time.sleep(self._step_seconds)
        loss = nn.functional.cross_entropy(self.network(inputs), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """How many digits of a batch are named rightly."""
        inputs, targets = batch
        right = (self.network(inputs).argmax(dim=1) == targets).float().mean()
        self.log("accuracy", right, sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Adam, with a rate that falls when the accuracy does not rise any more."""
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=3)
        schedule = {"scheduler": plateau, "monitor": "accuracy"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def main() -> None:
    """Trains to the end, and says how good the model is."""
    args = parse_args()
    torch.manual_seed(0)
    train, test = digits()
    best = ModelCheckpoint(f"{args.dir}/best", monitor="accuracy", mode="max", save_last=True)
    trainer = Trainer(
        strategy=ElasticStrategy(f"{args.dir}/job", every=args.every, global_batch=args.batch),
        max_epochs=args.epochs,
        callbacks=[best],
        default_root_dir=args.dir,
        log_every_n_steps=10,
        enable_model_summary=False,
    )
    loader = DataLoader(train, batch_size=args.batch, shuffle=True)
    module = Digits(args.step_ms)
    trainer.fit(module, loader, DataLoader(test, batch_size=90))
    if trainer.is_global_zero:
        accuracy = float(trainer.callback_metrics["accuracy"])
        print(f"test accuracy {accuracy:.3f} after {trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
