"""What the two training scripts of the benchmark share: the model, the data, the log of steps."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_SECONDS = 0.020
ENV_BALLAST = "BENCH_BALLAST"
_ballast: list[torch.Tensor] = []
SAVE_EVERY = 10
_LEARNING_RATE = 0.05
BATCH = 32


class Points(Dataset[tuple[torch.Tensor, int]]):
    """Endless enough: made points of 256 features with one of 10 labels."""

    def __init__(self, size: int = 1 << 30) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((256,), (index % 97) / 97), index % 10


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The 256-256-10 perceptron and its optimizer."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)


def hold_ballast() -> None:
    """Touches as much memory as ``ENV_BALLAST`` says (GiB), and keeps it: a real worker's is large.

    To be called before a loader has processes, as people read their data.
    """
    gigabytes = float(os.environ.get(ENV_BALLAST) or 0)
    _ballast.append(torch.ones(int(gigabytes * (1 << 30)), dtype=torch.uint8))


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches from a loader with two processes, as people have it."""
    return iter(DataLoader(Points(), batch_size=BATCH, num_workers=2))


def train_one(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    pause: float = STEP_SECONDS,
    weight: float = 1.0,
) -> None:
    """One step that takes a little over ``STEP_SECONDS``, or another pause."""
    points, labels = batch
    loss = nn.functional.cross_entropy(model(points), labels)
    optim.zero_grad()
    (loss if weight == 1.0 else loss * weight).backward()
    optim.step()
    time.sleep(pause)


class StepLog:
    """Appends each completed step of this process to a file of its own.

    The first line says who writes; the lines after it are ``<monotonic ns> <step>``. All ranks of
    a round name it by the same number, drawn by rank 0: launchers count rounds differently, and
    one whose nodes disagree about the round must not look as if they agreed.
    """

    def __init__(self, directory: str, first_step: int) -> None:
        """Agrees on the round's number with the other ranks and opens the file.

        Args:
            directory: where all files of the job go.
            first_step: the first step that this rank would do; rank 0's word counts.
        """
        word = torch.tensor([uuid.uuid4().int & (1 << 62) - 1, first_step], dtype=torch.int64)
        dist.broadcast(word, 0)
        self.first_step = int(word[1])
        who = {
            "round": int(word[0]),
            "rank": dist.get_rank(),
            "world": dist.get_world_size(),
            "pid": os.getpid(),
            "number": os.environ.get("ELASTIC_ROUND", ""),
            "restarts": os.environ.get("TORCHELASTIC_RESTART_COUNT", ""),
        }
        path = Path(directory, f"{uuid.uuid4().hex}.steps")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._write(json.dumps(who))

    def completed(self, step: int, at: int | None = None) -> None:
        """Notes that ``step`` is done, now or at this moment (monotonic, in nanoseconds)."""
        self._write(f"{at or time.monotonic_ns()} {step}")

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())
