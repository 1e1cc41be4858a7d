"""What each rank has for itself, or in pieces: given back, or made sense of in another world."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

import elastic_runtime as elastic
from elastic_runtime import PerRank, State
from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import CheckpointError
from elastic_runtime.parts.per_rank import value_digest
from elastic_runtime.parts.pieces import InPieces
from elastic_runtime.worker.context import context
from tests.ranks import run_ranks, values
from tests.trained import cut_off, trained
from tests.unit.checkpoint.states import save, state_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

KINDS: list[tuple[Callable[[int], Any], Callable[[Any], float]]] = [
    (lambda seed: torch.Generator().manual_seed(seed), lambda g: torch.rand(1, generator=g).item()),
    (lambda seed: random.Random(seed), lambda g: g.random()),
    (lambda seed: np.random.default_rng(seed), lambda g: g.random()),
    (lambda seed: np.random.Generator(np.random.Philox(seed)), lambda g: g.random()),
    (lambda seed: np.random.Generator(np.random.MT19937(seed)), lambda g: g.random()),
]
# Of a job with three ranks that is saved, and then goes on with as many, with fewer and with more.
RANKS = 3
LETTERS = ("abc", "", "de")
NEEDED = ("a", "abcde", "bcd", "")


class Letters(InPieces):
    """Of which each rank has some."""

    def __init__(self, letters: str = "", needs: str = "") -> None:
        self.held: dict[str, Any] = {letter: [ord(letter)] for letter in letters}
        self.offered: list[str] = []
        self.needs = needs

    def own_pieces(self) -> dict[str, Any]:
        return self.held

    def needed_pieces(self, saved: Collection[str]) -> Collection[str]:
        self.offered = sorted(saved)
        return list(self.needs)

    def take_pieces(self, pieces: Mapping[str, Any]) -> None:
        self.held = dict(pieces)

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


@dataclass
class Found:
    """What a rank has: when it is saved, or after it was loaded.

    Attributes:
        own: what each of its own generators draws next.
        common: the same of generators that are alike on all ranks.
        everywhere: what the global ones draw next.
        seen, shares, cursor, sizes: its values.
        letters, offered: its pieces, and those that it could have.
        anew: the entries that begin anew, as rank 0 has heard.
    """

    own: list[list[float]]
    common: list[float]
    everywhere: list[float]
    seen: list[int]
    shares: list[int]
    cursor: int
    sizes: list[int]
    letters: dict[str, Any]
    offered: list[str]
    anew: list[str]


def share(saved: Sequence[list[int]], rank: int, world: int) -> list[int]:
    return [one for part in saved[rank::world] for one in part]


def draw_everywhere() -> list[float]:
    return [torch.rand(1).item(), random.random(), np.random.rand(), np.random.randn()]


class Job:
    """The objects of a rank."""

    def __init__(self, path: str, seed: int, common: int, letters: Letters) -> None:
        self.own = [make(seed) for make, _ in KINDS]
        self.common = [make(common) for make, _ in KINDS]
        self.seen, self.shares = PerRank([seed]), PerRank([seed], adapt=share)
        self.sampler = ElasticBatchSampler(64, 1, rank=0, world=1)
        self.sampler.cursor = seed
        self.sizes = PerRank(torch.arange(seed))
        self.letters = letters
        parts = {
            **{f"own{number}": one for number, one in enumerate(self.own)},
            **{f"common{number}": one for number, one in enumerate(self.common)},
            "seen": self.seen,
            "shares": self.shares,
            "data": PerRank(self.sampler),
            "sizes": self.sizes,
            "letters": letters,
        }
        self.state = state_in(path, parts)

    def found(self, anew: list[str]) -> Found:
        draws = [draw for _, draw in KINDS]
        return Found(
            [[draw(one) for _ in range(5)] for draw, one in zip(draws, self.own, strict=True)],
            [draw(one) for draw, one in zip(draws, self.common, strict=True)],
            [*draw_everywhere(), *draw_everywhere()],
            self.seen.value,
            self.shares.value,
            self.sampler.cursor,
            self.sizes.value.tolist(),
            self.letters.held,
            self.letters.offered,
            anew,
        )


def saved(path: str) -> Found:
    rank = dist.get_rank()
    job = Job(path, rank + 1, 5, Letters(LETTERS[rank]))
    for (_, draw), one in zip(KINDS, job.own, strict=True):
        draw(one)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(rank)
    draw_everywhere()  # the normal numbers of NumPy come in pairs: the second one is kept
    with trained(job.state):
        job.state.commit()
    return job.found([])


def loaded(path: str) -> Found:
    job = Job(path, 9, 9, Letters(needs=NEEDED[dist.get_rank()]))
    anew: list[str] = []

    def note(event: Any) -> None:
        if event.name == "checkpoint.anew":
            anew.extend(event.fields()["entries"])

    with mock.patch.object(context(), "note", note), cut_off(job.state):
        assert job.state.step == 1
        return job.found(anew)


@dataclass
class Worlds:
    """What the ranks of a job have had, and those of the worlds in which it goes on."""

    before: list[Found]
    same: list[Found]
    fewer: list[Found]
    more: list[Found]
    more_again: list[Found]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    path = str(tmp_path_factory.mktemp("runs"))
    before = values(run_ranks(RANKS, saved, path))
    return Worlds(before, *(values(run_ranks(n, loaded, path)) for n in (RANKS, 2, 4, 4)))


def test_in_a_world_of_the_same_size_each_rank_goes_on(worlds: Worlds) -> None:
    for before, after in zip(worlds.before, worlds.same, strict=True):
        assert after.own == before.own
        assert after.everywhere == before.everywhere
        assert (after.seen, after.shares) == (before.seen, before.shares)
        assert (after.cursor, after.sizes) == (before.cursor, before.sizes)
        assert after.anew == []
    assert [one.sizes for one in worlds.same] == [[0], [0, 1], [0, 1, 2]]


def test_in_another_world_all_draw_different_numbers_and_always_the_same(worlds: Worlds) -> None:
    assert [one.own for one in worlds.more] == [one.own for one in worlds.more_again]
    assert [one.everywhere for one in worlds.more] == [one.everywhere for one in worlds.more_again]
    for found in (worlds.fewer, worlds.more):
        for number, (make, draw) in enumerate(KINDS):
            firsts = [one.own[number][0] for one in (*found, *worlds.before)]
            assert len({*firsts, draw(make(9))}) == len(found) + RANKS + 1
        for alike in zip(*(one.everywhere for one in (*found, *worlds.before)), strict=True):
            assert len({*alike}) == len(alike)


def test_a_generator_that_was_the_same_everywhere_stays_so(worlds: Worlds) -> None:
    expected = [draw(make(5)) for make, draw in KINDS]
    for one in (*worlds.same, *worlds.fewer, *worlds.more):
        assert one.common == expected


def test_values_of_ranks_of_another_world_begin_anew_unless_the_program_adapts_them(
    worlds: Worlds,
) -> None:
    assert [one.seen for one in worlds.fewer] == [[9], [9]]
    assert [one.shares for one in worlds.fewer] == [[1, 3], [2]]
    assert [one.shares for one in worlds.more] == [[1], [2], [3], []]
    for found in (worlds.fewer, worlds.more):
        assert sorted(found[0].anew) == ["data", "seen", "sizes"]


def test_a_rank_goes_on_with_the_pieces_that_it_needs(worlds: Worlds) -> None:
    for found in (worlds.same, worlds.fewer, worlds.more):
        for one, needs in zip(found, NEEDED, strict=False):
            assert one.offered == [*"abcde"]
            assert one.letters == {letter: [ord(letter)] for letter in needs}


def test_what_was_one_state_of_all_ranks_can_become_one_of_each(tmp_path: Path) -> None:
    first, mine = (ElasticBatchSampler(64, 1, rank=0, world=1) for _ in range(2))
    save(tmp_path, {"data": first})
    elastic.load(tmp_path, State(data=PerRank(mine)))
    assert mine.cursor == first.cursor == 1


def test_a_checkpoint_without_it_is_told_by_its_name(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(CheckpointError, match="it lacks rng;"):
        elastic.load(tmp_path, State(a=1, rng=torch.Generator()))


def test_a_digest_tells_values_apart() -> None:
    different: list[Any] = [1, 1.0, "1", b"1", True, None, [1], (1,), {1}, {1: 1}, [[1]]]
    different += [["a", "b"], ["ab"], torch.tensor(1), torch.tensor(1.0), torch.tensor([1])]
    assert len({value_digest(value) for value in different}) == len(different)
    assert value_digest({"a": torch.ones(3)}) == value_digest({"a": torch.ones(3)})


def test_a_checkpoint_without_pieces_does_not_fit(tmp_path: Path) -> None:
    save(tmp_path, {"x": Letters("")})
    with pytest.raises(CheckpointError, match="it lacks x;"):
        elastic.load(tmp_path, State(x=Letters(needs="a")))


def test_pieces_that_are_no_plain_values_are_refused(tmp_path: Path) -> None:
    letters = Letters()
    letters.held = {"a": object()}
    with pytest.raises(CheckpointError, match=r"x\.piece-a is a builtins\.object"):
        save(tmp_path, {"x": letters})
