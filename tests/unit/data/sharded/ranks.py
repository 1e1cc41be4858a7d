"""Ranks in threads of one process, each with a stream of its own, that are ended at any time."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from elastic_runtime.data import steps as step_module
from tests.unit.data.play import world_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from elastic_runtime.data.sharded.sharded_stream import ShardedStream


class ThreadPeers:
    """What ``Peers`` does, for ranks that are threads."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks)
        self._values: dict[int, Any] = {}

    def of(self, rank: int) -> SimpleNamespace:
        """The peers as one rank sees them."""
        return SimpleNamespace(gather=partial(self.gather, rank))

    def gather(self, rank: int, value: Any, purpose: str = "") -> list[Any]:
        """What each has given; all wait for each other, twice."""
        self._values[rank] = json.dumps(value)
        self._barrier.wait(20)
        answer = [json.loads(text) for _, text in sorted(self._values.items())]
        self._barrier.wait(20)
        return answer

    def abort(self) -> None:
        """A rank is gone: nobody waits for it."""
        self._barrier.abort()


# Its weight and its samples.
Piece = tuple[float, tuple[int, ...]]


@dataclass(frozen=True)
class GlobalStep:
    """A committed step: its epoch, and the pieces of each rank."""

    epoch: int
    by_rank: tuple[tuple[Piece, ...], ...]

    @property
    def samples(self) -> list[int]:
        """Those of all ranks that count."""
        return sorted(n for own in self.counted for piece in own for n in piece)

    @property
    def counted(self) -> list[list[tuple[int, ...]]]:
        """The samples that count, by rank and piece."""
        return [[piece if weight else () for weight, piece in own] for own in self.by_rank]


def write_shards(folder: Path, sizes: list[int]) -> list[str]:
    """Shards of numbered lines, so many in each."""
    number, paths = 0, []
    for shard, size in enumerate(sizes):
        path = folder / f"{shard:04}.jsonl"
        path.write_text("".join(f"{n}\n" for n in range(number, number + size)))
        paths.append(str(path))
        number += size
    return paths


def live(
    monkeypatch: pytest.MonkeyPatch,
    streams: list[ShardedStream],
    steps: int,
    epochs: int,
    *,
    cut_off: bool = False,
) -> list[GlobalStep]:
    """Trains in a world of these ranks; then all stop.

    Args:
        streams: one for each rank.
        steps: how many are committed at most.
        epochs: it ends after these in any case.
        cut_off: they stop in the middle of the next step.
    """
    peers = ThreadPeers(len(streams))
    made: list[list[tuple[int, tuple[Piece, ...]]]] = [[] for _ in streams]
    errors: list[BaseException] = []
    local = threading.local()
    monkeypatch.setattr(step_module, "Peers", lambda group: peers.of(local.rank))

    def work(rank: int, stream: ShardedStream) -> None:
        local.rank = rank
        stream.enter(world_of(rank, len(streams)))
        try:
            _train(stream, made[rank], steps, epochs, cut_off)
        except BaseException as error:
            errors.append(error)
            peers.abort()

    threads = [threading.Thread(target=work, args=one) for one in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        told = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        raise (told or errors)[0]
    return [
        GlobalStep(ranks[0][0], tuple(own for _, own in ranks))
        for ranks in zip(*made, strict=True)
        if len({epoch for epoch, _ in ranks}) == 1
    ]


def _train(
    stream: ShardedStream,
    made: list[tuple[int, tuple[Piece, ...]]],
    steps: int,
    epochs: int,
    cut_off: bool,
) -> None:
    for step in stream.steps(epochs=epochs):
        if len(made) == steps:
            if cut_off:
                next(iter(step))
            break
        pieces = [(step.weight, tuple(piece.tolist())) for piece in step]
        made.append((step.epoch, tuple(pieces)))
        stream.commit()


def letters(shard: str) -> Iterator[str]:
    """A function of the user's that reads a shard."""
    yield from shard
