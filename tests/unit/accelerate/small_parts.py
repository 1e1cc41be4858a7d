"""What is prepared in these tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

DATA = torch.linspace(-1, 1, 20)[:, None]


def parts() -> tuple[Any, Any]:
    """A model and its optimizer."""
    model = nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
