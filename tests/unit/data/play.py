"""A job in small: ranks with real samplers and loaders that are resized, saved and resumed."""

from __future__ import annotations

import itertools
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.worker.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
        ahead: how many batches are read before the one that is trained on is committed.
    """

    world: int
    steps: int
    ahead: int = 0


@dataclass(frozen=True)
class Job:
    """The settings of a job, the same in all its lives."""

    size: int
    batch: int
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def sampler(self, **more: Any) -> ElasticBatchSampler:
        """A fresh one."""
        return ElasticBatchSampler(
            self.size, self.batch, **{"seed": self.seed, **self.options, **more}
        )

    def alone(self, epochs: int) -> list[Step]:
        """The global batches of an undisturbed run with one rank."""
        return self.play([Life(1, 1 << 30)], epochs)

    def play(
        self,
        lives: Sequence[Life],
        epochs: int,
        load: Callable[[ElasticBatchSampler], Any] | None = None,
    ) -> list[Step]:
        """The global batches of a run through these lives, again and again, until it is done.

        Args:
            lives: what happens.
            epochs: when it is done.
            load: makes a loader over the numbers of the samples.
        """

        def make(rank: int, world: int, again: bool) -> ElasticBatchSampler:
            # A new program, whose seed is another one: the saved one counts.
            return self.sampler(
                rank=rank, world=world, **({"seed": self.seed + 1} if again else {})
            )

        return played(lives, epochs, make, load or self._load)

    def _load(self, sampler: ElasticBatchSampler) -> DataLoader[torch.Tensor]:
        return DataLoader(torch.arange(self.size), batch_sampler=sampler)


def played(
    lives: Sequence[Life],
    epochs: int,
    make: Callable[[int, int, bool], Any],
    load: Callable[[Any], Any],
) -> list[Step]:
    """The global batches of a run through these lives, again and again, until it is done.

    Args:
        lives: what happens.
        epochs: when it is done.
        make: makes what has the position, of a rank in a world, and says whether that is resumed.
        load: makes a loader of it.
    """
    position = ""
    done: list[Step] = []
    for life in itertools.cycle(lives):
        ranks = [make(rank, life.world, bool(position)) for rank in range(life.world)]
        for rank in ranks if position else []:
            rank.load_state_dict(json.loads(position))
        done += train(ranks, [load(rank) for rank in ranks], life, epochs)
        (position,) = {json.dumps(rank.state_dict()) for rank in ranks}
        if ranks[0].epoch >= epochs:
            break
    return done


def train(ranks: Sequence[Any], loaders: Sequence[Any], life: Life, epochs: int) -> list[Step]:
    """Trains all ranks for one life, in lockstep; they read ahead and commit."""
    done: list[Step] = []
    while ranks[0].epoch < epochs and len(done) < life.steps:
        epoch = ranks[0].epoch
        sources = [read_ahead(iter(loader), life.ahead) for loader in loaders]
        for shares in zip(*sources, strict=True):
            weights = [rank.loss_scale for rank in ranks]
            assert abs(sum(weights) - len(ranks)) < 1e-9
            done.append(
                [i for share, w in zip(shares, weights, strict=True) if w for i in share.tolist()]
            )
            for rank in ranks:
                rank.commit()
            if len(done) == life.steps:
                break
        else:
            assert ranks[0].epoch == epoch + 1, "the batches end where the epoch does"
    return done


def read_ahead(batches: Iterator[Any], depth: int) -> Iterator[Any]:
    """The same batches, each of them read so many before it is used."""
    waiting: deque[Any] = deque(itertools.islice(batches, depth))
    for batch in batches:
        waiting.append(batch)
        yield waiting.popleft()
    yield from waiting
