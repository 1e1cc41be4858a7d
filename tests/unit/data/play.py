"""A job in small: ranks with real loaders that are resized, saved and resumed."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.worker.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    # One global batch: the samples that count.
    Step = list[int]


def world_of(rank: int, size: int) -> World:
    """What ``elastic.run`` tells a part of the state."""
    return World(rank, size, rank, size, 0, 1, 1)


@dataclass(frozen=True)
class Life:
    """A stretch between two resizes.

    Attributes:
        world: how many ranks.
        steps: how many steps are committed in it.
    """

    world: int
    steps: int


@dataclass(frozen=True)
class Job:
    """The settings of a job, the same in all its lives."""

    size: int
    batch: int
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def loader(self, rank: int = 0, world: int = 1, **more: Any) -> DataLoader:
        """A fresh one, of a rank."""
        settings = {"seed": self.seed, **self.options, **more}
        made = DataLoader(torch.arange(self.size), self.batch, **settings)
        made.enter(world_of(rank, world))
        return made

    def alone(self, epochs: int) -> list[Step]:
        """The global batches of an undisturbed run with one rank."""
        return self.play([Life(1, 1 << 30)], epochs)

    def play(self, lives: Sequence[Life], epochs: int, **options: Any) -> list[Step]:
        """The global batches of a run through these lives, again and again, until it is done.

        Args:
            lives: what happens.
            epochs: when it is done.
            **options: of the loaders.
        """
        position = ""
        done: list[Step] = []
        for life in itertools.cycle(lives):
            # A new program, whose seed is another one: the saved one counts.
            seed = {"seed": self.seed + 1} if position else {}
            ranks = [self.loader(n, life.world, **seed, **options) for n in range(life.world)]
            for rank in ranks if position else []:
                rank.load_state_dict(json.loads(position))
            done += train(ranks, life, epochs)
            (position,) = {json.dumps(rank.state_dict()) for rank in ranks}
            if ranks[0].epoch >= epochs:
                break
        return done


def train(ranks: Sequence[DataLoader], life: Life, epochs: int) -> list[Step]:
    """Trains all ranks for one life, in lockstep, and commits."""
    done: list[Step] = []
    if not life.steps:
        return done
    for steps in zip(*(rank.steps(epochs=epochs) for rank in ranks), strict=True):
        assert abs(sum(sum(step.weights) for step in steps) - len(ranks)) < 1e-9
        pieces = [zip(step, step.weights, strict=True) for step in steps]
        done.append(
            [i for own in pieces for piece, weight in own if weight for i in piece.tolist()]
        )
        for rank in ranks:
            rank.commit()
        if len(done) == life.steps:
            break
    return done
