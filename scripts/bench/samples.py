#!/usr/bin/env python3
"""Which samples of an epoch are repeated or never seen when the number of ranks changes.

One epoch of a data set is replayed over several worlds, one after the other, with the samplers
alone, without training. Three ways to go on after a change:

- ``DistributedSampler`` restarted: the epoch begins anew, as in a script that saves no position.
- ``DistributedSampler`` and skip: as many batches as have been made are skipped, as in a script
  that saves the number of its batch.
- ``elastic.DataLoader``: its saved position, in the same global batches.

::

    scripts/bench/samples.py --size 10007 --worlds 4 3 2 4
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torch.utils.data import BatchSampler, DistributedSampler

from elastic_runtime import DataLoader, World

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Replay:
    """What is replayed.

    Attributes:
        size: samples in the data set.
        batch: samples of each rank in a step; the global batch of the first world is kept by
            ``elastic.DataLoader``.
        worlds: how many ranks, one change after the other.
        steps: from one change to the next; the last world goes on to the end of the epoch.
        seed: of the order.
    """

    size: int
    batch: int
    worlds: tuple[int, ...]
    steps: int
    seed: int

    def lives(self) -> Iterator[tuple[int, int | None]]:
        """The number of ranks, and of steps if there is a change."""
        *changed, last = self.worlds
        yield from ((world, self.steps) for world in changed)
        yield last, None


@dataclass(frozen=True)
class Count:
    """How the samples of the epoch fared.

    Attributes:
        name: of the contender.
        repeated: how often a sample was seen that had been seen before.
        never: how many samples were not seen.
    """

    name: str
    repeated: int
    never: int

    @classmethod
    def of(cls, name: str, seen: list[int], size: int) -> Count:
        """Counts what was seen."""
        times = collections.Counter(seen)
        return cls(name, times.total() - len(times), size - len(times))


def restarted(replay: Replay) -> list[int]:
    """All samples that ``DistributedSampler`` gives if each change begins the epoch anew."""
    seen = []
    for world, steps in replay.lives():
        seen += _distributed(replay, world, 0, steps)
    return seen


def skipping(replay: Replay) -> list[int]:
    """The same, if each change skips the batches that have been made."""
    seen: list[int] = []
    made = 0
    for world, steps in replay.lives():
        seen += _distributed(replay, world, made, steps)
        made += steps or 0
    return seen


def _distributed(replay: Replay, world: int, skip: int, steps: int | None) -> list[int]:
    seen = []
    for rank in range(world):
        sampler: DistributedSampler[int] = DistributedSampler(
            range(replay.size),  # type: ignore[arg-type]
            num_replicas=world,
            rank=rank,
            seed=replay.seed,
        )
        end = None if steps is None else skip + steps
        batches = itertools.islice(BatchSampler(sampler, replay.batch, False), skip, end)
        seen += [index for batch in batches for index in batch]
    return seen


def elastic(replay: Replay) -> list[int]:
    """All samples that count with ``elastic.DataLoader``, saved and loaded at each change."""
    batch = replay.batch * replay.worlds[0]
    position = ""
    seen = []
    for world, steps in replay.lives():
        ranks = [DataLoader(range(replay.size), batch, seed=replay.seed) for _ in range(world)]
        for number, rank in enumerate(ranks):
            rank.enter(World(number, world, number, world, 0, 1, 1))
            if position:
                rank.load_state_dict(json.loads(position))
        rows = zip(*(rank.steps(epochs=1) for rank in ranks), strict=True)
        for shares in itertools.islice(rows, steps):
            for rank, share in zip(ranks, shares, strict=True):
                seen += [int(i) for piece in share for i in piece if share.weight]
                rank.commit()
        position = json.dumps(ranks[0].state_dict())
    return seen


CONTENDERS = {
    "DistributedSampler, restarted": restarted,
    "DistributedSampler and skip": skipping,
    "elastic.DataLoader": elastic,
}


def compare(replay: Replay) -> list[Count]:
    """What all contenders make of a replay."""
    return [Count.of(name, run(replay), replay.size) for name, run in CONTENDERS.items()]


def main() -> int:
    """Replays and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=10_007, help="samples in the data set")
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank in a step")
    parser.add_argument("--worlds", type=int, nargs="+", default=[4, 3, 2, 4], help="ranks")
    parser.add_argument("--steps", type=int, default=16, help="from one change to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    args = parser.parse_args()
    replay = Replay(args.size, args.batch, tuple(args.worlds), args.steps, args.seed)
    counts = compare(replay)
    worlds = " → ".join(map(str, replay.worlds))
    print(f"{replay.size} samples, ranks {worlds}, a change every {replay.steps} steps")
    for count in counts:
        print(f"{count.name:30} {count.repeated:6} repeated {count.never:6} never seen")
    if args.json:
        report = {"replay": asdict(replay), "counts": [asdict(count) for count in counts]}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
