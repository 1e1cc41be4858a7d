"""The benchmark's job under Hugging Face's ``Trainer``, as people write it.

It saves every ten steps, and a restart loads the last of these. ``train_hf_elastic.py`` is the same
with our trainer.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from workload import BATCH, SAVE_EVERY, STEP_SECONDS, Points, StepLog, hold_ballast, network

from elastic_runtime.worker.context import context

if TYPE_CHECKING:
    from collections.abc import Callable

warnings.filterwarnings("ignore")


class NamedPoints(Dataset[dict[str, Any]]):
    """The benchmark's data, as a ``Trainer`` wants them."""

    def __init__(self, size: int) -> None:
        self._points = Points(size)

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, index: int) -> dict[str, Any]:
        points, label = self._points[index]
        return {"points": points, "labels": label}


class Perceptron(nn.Module):
    """The benchmark's model."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.optim = network()

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        logits = self.net(points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Steps(TrainerCallback):
    """Notes each step when it is known to count."""

    def __init__(self, notes: str) -> None:
        self._notes = notes
        self._round = -1
        self._log: StepLog | None = None
        self._made: tuple[StepLog, int, int] | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        made, self._made = self._made, None
        if made is not None and state.global_step >= made[1]:
            log, step, at = made
            log.completed(step - 1, at)
        if self._log is None or self._round != context().round:
            self._round = context().round
            self._log = StepLog(self._notes, first_step=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._log is not None
        time.sleep(STEP_SECONDS)
        self._made = (self._log, state.global_step, time.monotonic_ns())


def made(make: Callable[..., Any], *, saves: bool) -> Any:
    """Makes a trainer.

    Args:
        make: its class.
        saves: it saves by itself.

    Returns:
        The trainer, and where its checkpoints go.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True, help="directory for the logs of steps")
    parser.add_argument("--checkpoint", required=True, help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=1 << 30)
    args = parser.parse_args()
    hold_ballast()
    torch.manual_seed(0)
    settings = TrainingArguments(
        args.checkpoint,
        per_device_train_batch_size=BATCH,
        max_steps=args.steps,
        save_strategy="steps" if saves else "no",
        save_steps=SAVE_EVERY,
        save_total_limit=2,
        logging_strategy="no",
        dataloader_num_workers=2,
        disable_tqdm=True,
        report_to="none",
        use_cpu=True,
    )
    model = Perceptron()
    trainer = make(
        model,
        settings,
        train_dataset=NamedPoints(1 << 16),
        callbacks=[Steps(args.notes)],
        optimizers=(model.optim, None),
    )
    return trainer, args.checkpoint


def main() -> None:
    """Trains until ``--steps`` are done or somebody ends it."""
    trainer, checkpoint = made(Trainer, saves=True)
    last = get_last_checkpoint(checkpoint) if os.path.isdir(checkpoint) else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
