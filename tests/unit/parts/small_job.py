"""A small model with all that a ``State`` may hold, for several tests."""

from __future__ import annotations

import json
import random

import torch
from torch import nn

from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.parts.commit_image import CommitImage
from elastic_runtime.training.state import State
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition, RankStatus


class Job:
    """A small model with all that a State may hold, and a step that uses it."""

    def __init__(self, *, shadow: bool = False, seed: int = 0, lr: float = 0.01) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)
        )
        self.optim = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optim, step_size=2, gamma=0.5)
        self.sampler = ElasticBatchSampler(64, 4, rank=0, world=1)
        self.state = State(
            shadow=shadow,
            model=self.model,
            optim=self.optim,
            scheduler=self.scheduler,
            sampler=self.sampler,
        )
        self.state.seen = 0
        self.state.losses = []
        self.state.keep_in_memory()
        self.committed = ""  # what it held at a commit, if somebody keeps that

    def start(self) -> Job:
        begun(self.state)
        return self

    def forward(self) -> torch.Tensor:
        """All of a step before the optimizer: changes buffers, counters and generators."""
        self.optim.zero_grad()
        loss = self.model(torch.rand(4, 4) + random.random()).square().mean()
        loss.backward()
        self.state.seen += 4
        self.state.losses.append(loss.item())
        return loss

    def step(self) -> None:
        self.forward()
        self.optim.step()
        self.scheduler.step()
        self.state.commit()

    def values(self) -> str:
        """Everything that the State gives to other ranks, as text."""
        return as_text(self.state)

    def content(self) -> str:
        """Everything that the State covers, with the places of the generators."""
        return json.dumps([self.values(), torch.get_rng_state().tolist(), random.getstate()])


def begun(state: State) -> State:
    """As in a run, with its beginning for a commit."""
    state.keep_in_memory()
    state._on_commit = lambda: None
    state.remember_commit(0)
    return state


def as_text(state: State) -> str:
    """Everything that a State gives to other ranks."""
    meta, tensors = state.commit_image()
    return json.dumps([meta, [tensor.tolist() for tensor in tensors]])


def copy_of(picture: CommitImage) -> CommitImage:
    """What arrives on another rank."""
    meta = json.loads(json.dumps(picture.meta))
    return CommitImage(meta, [tensor.clone() for tensor in picture.tensors])


def has_status(state: State, step: int, condition: MemoryCondition) -> bool:
    return state.rank_status() == RankStatus(step, condition)
