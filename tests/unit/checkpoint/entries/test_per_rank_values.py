"""What each rank has for itself, or in pieces: given back, or made sense of in another world."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import elastic_runtime
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import CheckpointError
from elastic_runtime.parts.per_rank import (
    GlobalGenerators,
    PerRank,
    RankPosition,
    value_digest,
)
from elastic_runtime.parts.pieces import InPieces
from tests.checkpoints import parts_of, write

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from elastic_runtime.checkpoint.format.manifest import CheckpointId

KINDS: list[tuple[Callable[[int], Any], Callable[[Any], float]]] = [
    (lambda seed: torch.Generator().manual_seed(seed), lambda g: torch.rand(1, generator=g).item()),
    (lambda seed: random.Random(seed), lambda g: g.random()),
    (lambda seed: np.random.default_rng(seed), lambda g: g.random()),
    (lambda seed: np.random.Generator(np.random.Philox(seed)), lambda g: g.random()),
    (lambda seed: np.random.Generator(np.random.MT19937(seed)), lambda g: g.random()),
]


def save(path: Path, entries: Sequence[dict[str, Any]]) -> tuple[LocalStorage, CheckpointId]:
    """A checkpoint of a world in which each rank has these entries."""
    storage = LocalStorage(path)
    storage.prepare()
    return storage, write(storage, [parts_of(e).saved(r) for r, e in enumerate(entries)])


def load(
    storage: LocalStorage, which: CheckpointId, entries: dict[str, Any], rank: int, world: int
) -> list[str]:
    """Gives a rank what was saved; returns the entries that begin anew."""
    loading = LoadRun(storage, which, parts_of(entries), RankPosition(rank, world))
    loading.prepare()
    loading.read()
    return loading.restore()


@pytest.mark.parametrize(("make", "draw"), KINDS)
def test_in_a_world_of_the_same_size_each_rank_goes_on(
    tmp_path: Path, make: Callable[[int], Any], draw: Callable[[Any], float]
) -> None:
    before = [make(seed) for seed in (1, 2, 3)]
    for generator in before:
        draw(generator)
    storage, which = save(tmp_path, [{"rng": generator} for generator in before])
    for rank, generator in enumerate(before):
        other = make(9)
        load(storage, which, {"rng": other}, rank, 3)
        assert [draw(other) for _ in range(5)] == [draw(generator) for _ in range(5)]


@pytest.mark.parametrize(("make", "draw"), KINDS)
@pytest.mark.parametrize("world", [2, 4])
def test_in_another_world_all_draw_different_numbers_and_always_the_same(
    tmp_path: Path, make: Callable[[int], Any], draw: Callable[[Any], float], world: int
) -> None:
    storage, which = save(tmp_path, [{"rng": make(seed)} for seed in (1, 2, 3)])

    def drawn() -> list[float]:
        found = []
        for rank in range(world):
            generator = make(9)
            load(storage, which, {"rng": generator}, rank, world)
            found.append(draw(generator))
        return found

    once = drawn()
    assert once == drawn()
    assert len({*once, *(draw(make(seed)) for seed in (1, 2, 3, 9))}) == world + 4


@pytest.mark.parametrize(("make", "draw"), KINDS)
def test_a_generator_that_was_the_same_everywhere_stays_so(
    tmp_path: Path, make: Callable[[int], Any], draw: Callable[[Any], float]
) -> None:
    storage, which = save(tmp_path, [{"rng": make(5)}] * 3)
    expected = draw(make(5))
    for rank in range(4):
        generator = make(9)
        load(storage, which, {"rng": generator}, rank, 4)
        assert draw(generator) == expected


def test_the_global_generators_go_on(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [torch.rand(1).item(), random.random(), np.random.rand(), np.random.randn()]

    draw()  # the normal numbers of NumPy come in pairs: the second one is kept
    storage, which = save(tmp_path, [{"rng": GlobalGenerators()}])
    expected = [draw(), draw()]
    load(storage, which, {"rng": GlobalGenerators()}, 0, 1)
    assert [draw(), draw()] == expected
    storage, which = save(tmp_path / "two", [{"rng": GlobalGenerators()}, {"rng": random.Random()}])
    with pytest.raises(CheckpointError, match="the entry 'rng' refused what was loaded for it"):
        load(storage, which, {"rng": GlobalGenerators()}, 1, 2)


def test_values_of_each_rank(tmp_path: Path) -> None:
    saved = [{"seen": PerRank([rank])} for rank in range(3)]
    storage, which = save(tmp_path, saved)
    for rank in range(3):
        mine = elastic_runtime.PerRank([])
        assert load(storage, which, {"seen": mine}, rank, 3) == []
        assert mine.value == [rank]
    fresh = PerRank(["fresh"])
    assert load(storage, which, {"seen": fresh}, 0, 2) == ["seen"]
    assert fresh.value == ["fresh"]


def test_the_program_says_what_becomes_of_them(tmp_path: Path) -> None:
    storage, which = save(tmp_path, [{"seen": PerRank([rank])} for rank in range(5)])

    def share(saved: Sequence[list[int]], rank: int, world: int) -> list[int]:
        return [one for part in saved[rank::world] for one in part]

    shares = [PerRank([], adapt=share) for _ in range(2)]
    for rank, mine in enumerate(shares):
        assert load(storage, which, {"seen": mine}, rank, 2) == []
    assert [mine.value for mine in shares] == [[0, 2, 4], [1, 3]]


def test_objects_of_each_rank(tmp_path: Path) -> None:
    first, second, mine = (ElasticBatchSampler(64, 1, rank=0, world=1) for _ in range(3))
    first.cursor, second.cursor = 7, 8
    storage, which = save(tmp_path, [{"data": PerRank(one)} for one in (first, second)])
    load(storage, which, {"data": PerRank(mine)}, 1, 2)
    assert mine.cursor == 8


def test_tensors_of_each_rank_may_have_different_shapes(tmp_path: Path) -> None:
    storage, which = save(tmp_path, [{"n": PerRank(torch.arange(size))} for size in (3, 5)])
    mine = PerRank(torch.zeros(1))
    load(storage, which, {"n": mine}, 1, 2)
    assert mine.value.tolist() == [0, 1, 2, 3, 4]


def test_what_was_one_value_of_all_ranks_can_become_one_of_each(tmp_path: Path) -> None:
    storage, which = save(tmp_path, [{"n": 3}, {"n": 3}])
    mine = PerRank(0)
    load(storage, which, {"n": mine}, 2, 3)
    assert mine.value == 3


def test_a_checkpoint_without_it_is_told_by_its_name(tmp_path: Path) -> None:
    storage, which = save(tmp_path, [{"a": 1}])
    with pytest.raises(CheckpointError, match="it lacks rng;"):
        load(storage, which, {"a": 1, "rng": torch.Generator()}, 0, 1)


def test_a_digest_tells_values_apart() -> None:
    values: list[Any] = [1, 1.0, "1", b"1", True, None, [1], (1,), {1}, {1: 1}, [[1]], ["a", "b"]]
    values += [["ab"], torch.tensor(1), torch.tensor(1.0), torch.tensor([1])]
    assert len({value_digest(value) for value in values}) == len(values)
    assert value_digest({"a": torch.ones(3)}) == value_digest({"a": torch.ones(3)})


# What ranks hold together in pieces can be held by other ranks in another world


class Letters(InPieces):
    """Of which each rank has some."""

    def __init__(self, letters: str = "") -> None:
        self.values: dict[str, Any] = {letter: [ord(letter)] for letter in letters}
        self.offered: list[str] = []
        self.needs = ""

    def own_pieces(self) -> dict[str, Any]:
        return self.values

    def needed_pieces(self, saved: Collection[str]) -> Collection[str]:
        self.offered = sorted(saved)
        return list(self.needs)

    def take_pieces(self, pieces: Mapping[str, Any]) -> None:
        self.values = dict(pieces)


def loaded(folder: Path, ranks: list[str], needs: str) -> Letters:
    """One of five ranks, after it has loaded what these ranks have saved."""
    storage, which = save(folder, [{"x": Letters(own)} for own in ranks])
    letters = Letters()
    letters.needs = needs
    assert load(storage, which, {"x": letters}, 1, 5) == []
    return letters


@pytest.mark.parametrize("needs", ["a", "bcd", "e", "abcde", ""])
def test_a_rank_goes_on_with_the_pieces_that_it_needs(tmp_path: Path, needs: str) -> None:
    letters = loaded(tmp_path, ["abc", "", "de"], needs)
    assert letters.offered == [*"abcde"]
    assert letters.values == {letter: [ord(letter)] for letter in needs}


def test_a_checkpoint_without_pieces_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it lacks x;"):
        loaded(tmp_path, ["", ""], "a")


def test_pieces_that_are_no_plain_values_are_refused() -> None:
    letters = Letters()
    letters.values = {"a": object()}
    with pytest.raises(CheckpointError, match=r"x\.piece-a is a builtins\.object"):
        parts_of({"x": letters}).saved(0)
