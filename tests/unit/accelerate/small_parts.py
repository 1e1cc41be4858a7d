"""What is prepared in these tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import elastic_runtime as elastic

DATA = torch.linspace(-1, 1, 20)[:, None]


def parts(batch: int = 8, micro: int | None = None) -> tuple[Any, Any, Any, Any]:
    model = nn.Linear(1, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = elastic.ElasticBatchSampler(DATA, batch, micro_batch_size=micro)
    return model, optim, sampler, elastic.loader(DATA, sampler)
