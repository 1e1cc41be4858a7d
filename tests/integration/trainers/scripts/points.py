"""What the trainers of these tests learn, and where: the same for all of them."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from elastic_runtime.worker.context import context
from elastic_runtime.worker.world import World

FEATURES = 6
SAMPLES = 203  # the last batch of an epoch is a smaller one
BATCH = 5  # of each of two ranks
EPOCHS = 12


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """A smooth function of some numbers, with the index of each sample."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=made)
        self.targets = torch.sin(self.inputs.sum(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.targets[index], index


def now() -> World:
    """The present world."""
    return replace(World.of_environment(os.environ), round=context().round)
