"""The benchmark's job under Lightning: as people write it, or with a strategy or callback of ours.

``BENCH_LIGHTNING`` says which: ``in-place``, ``restart``, or nothing: then Lightning's own DDP
saves every ten steps, and a restart loads the last of these.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import warnings
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader
from workload import BATCH, SAVE_EVERY, STEP_SECONDS, Points, StepLog, hold_ballast, network

from elastic_runtime.lightning import ElasticCallback, ElasticStrategy
from elastic_runtime.worker.context import context

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Perceptron(L.LightningModule):
    """The benchmark's model and step."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self._optim = network()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        points, labels = batch
        return nn.functional.cross_entropy(self.net(points), labels)

    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(STEP_SECONDS)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optim


class Steps(Callback):
    """Notes each step when it is known to count."""

    def __init__(self, notes: str) -> None:
        self._notes = notes
        self._round = -1
        self._log: StepLog | None = None
        self._made: tuple[StepLog, int, int] | None = None

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._write(trainer)
        if self._log is None or self._round != context().round:
            self._round = context().round
            self._log = StepLog(self._notes, first_step=trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        assert self._log is not None
        self._made = (self._log, trainer.global_step, time.monotonic_ns())

    def on_exception(self, trainer: L.Trainer, *_: Any) -> None:
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        made, self._made = self._made, None
        if made is not None and trainer.global_step >= made[1]:
            log, step, at = made
            log.completed(step - 1, at)


def main() -> None:
    """Trains until ``--steps`` are done or somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True, help="directory for the logs of steps")
    parser.add_argument("--checkpoint", required=True, help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=1 << 30)
    args = parser.parse_args()
    hold_ballast()
    torch.manual_seed(0)

    kind = os.environ.get("BENCH_LIGHTNING", "")
    callbacks: list[Callback] = [Steps(args.notes)]
    strategy: Any = "ddp"
    if kind == "in-place":
        strategy = ElasticStrategy(args.checkpoint, every="30s")
    elif kind == "restart":
        callbacks.append(ElasticCallback(args.checkpoint, every=SAVE_EVERY))
    else:
        saved = {"every_n_train_steps": SAVE_EVERY, "save_last": True, "save_top_k": 0}
        callbacks.append(ModelCheckpoint(args.checkpoint, **saved))
    trainer = L.Trainer(
        strategy=strategy,
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_steps=args.steps,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=not kind,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(Points(1 << 16), batch_size=BATCH, shuffle=True, num_workers=2)
    trainer.fit(Perceptron(), loader, ckpt_path=None if kind else "last")


if __name__ == "__main__":
    main()
