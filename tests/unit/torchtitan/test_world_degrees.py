"""The layout of the ranks follows the world, as far as the config leaves that open."""

from __future__ import annotations

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.torchtitan.world_degrees import Degrees


@pytest.mark.parametrize(
    ("asked", "world", "replicas"),
    [
        (Degrees(model=1, shard=-1, replicate=1), 6, 1),
        (Degrees(model=2, shard=-1, replicate=1), 6, 1),
        (Degrees(model=1, shard=-1, replicate=2), 6, 2),
        (Degrees(model=1, shard=4, replicate=1), 12, 3),  # HSDP: a further replica a node
        (Degrees(model=2, shard=4, replicate=9), 8, 1),
        (Degrees(model=1, shard=1, replicate=1), 5, 5),  # DDP
    ],
)
def test_a_world_that_fits(asked: Degrees, world: int, replicas: int) -> None:
    assert asked.fitted(world) == Degrees(asked.model, asked.shard, replicas)


@pytest.mark.parametrize(
    ("asked", "world", "unit"),
    [
        (Degrees(model=4, shard=-1, replicate=1), 6, 4),
        (Degrees(model=1, shard=-1, replicate=2), 5, 2),
        (Degrees(model=2, shard=4, replicate=1), 12, 8),
        (Degrees(model=1, shard=8, replicate=1), 4, 8),
    ],
)
def test_a_world_that_does_not(asked: Degrees, world: int, unit: int) -> None:
    with pytest.raises(UsageError, match=f"{world} ranks .* groups of {unit} "):
        asked.fitted(world)


@pytest.mark.parametrize(
    ("asked", "ranks", "most"),
    [
        (Degrees(model=1, shard=-1, replicate=1), 6, 6),
        (Degrees(model=4, shard=-1, replicate=1), 10, 2),
        (Degrees(model=2, shard=4, replicate=1), 20, 8),
        (Degrees(model=1, shard=-1, replicate=2), 7, 6),
    ],
)
def test_the_data_parallel_ranks_of_the_largest_world(
    asked: Degrees, ranks: int, most: int
) -> None:
    assert asked.data_ranks(ranks) == most
