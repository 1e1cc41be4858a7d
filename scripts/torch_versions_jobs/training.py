"""The model that all of these jobs train, and one step of it."""

from __future__ import annotations

import os

import torch
from torch import nn


def network() -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def adam(model: nn.Module) -> torch.optim.Adam:
    """Its state matters, and it counts its steps itself."""
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train_one(model: nn.Module, optim: torch.optim.Optimizer, step: int) -> None:
    """One step with data of its own on each rank.

    Args:
        model: called with a batch.
        optim: of the same model.
        step: decides on the data, with the rank.
    """
    numbers = torch.Generator().manual_seed(1000 * step + int(os.environ["RANK"]))
    batch = torch.randn(8, 16, generator=numbers)
    optim.zero_grad()
    model(batch).square().mean().backward()
    optim.step()
