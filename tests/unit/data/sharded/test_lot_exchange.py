"""Ranks tell each other what they have read: all settle the same, or fail in the same way."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from elastic_runtime.data.sharded.lot_exchange import (
    ShardsUnreachable,
    failure,
    settled_by_all,
)
from elastic_runtime.data.sharded.lot_plan import EpochRules, Lot, WindowFound, begin_epoch, settle
from elastic_runtime.data.sharded.shard_list import ShardList
from elastic_runtime.data.sharded.stream_tasks import HeldWindow, ReadFailure
from elastic_runtime.errors import BrokenShard, ElasticError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.data.sharded.lot_plan import Settled
    from elastic_runtime.worker.peers import Peers

SHARDS = ShardList(["a", "b"], "jsonl", None, "[]")
LOT = begin_epoch(EpochRules(shards=9, batch=4, streams=3, shuffle=0, seed=0), 2)
# One stream is over, one is in its first shard, and one in its second.
FOUND = [WindowFound(5, 0, None), WindowFound(22, 2, {"row": [1, None]}), WindowFound(21, 1, 9)]

Own = dict[int, HeldWindow | ReadFailure]


class Said(Exception):
    """What a rank tells."""


class Silent:
    """Peers that only listen."""

    def gather(self, value: Any) -> list[Any]:
        raise Said(value)


class Gathered:
    """Peers of which one is here, and all have told something."""

    def __init__(self, rank: int, told: list[Any]) -> None:
        self.rank = rank
        self.told = json.dumps(told)  # it is sent as that

    def gather(self, value: Any) -> list[Any]:
        told: list[Any] = json.loads(self.told)
        assert told[self.rank] == value
        return told


def held(found: WindowFound) -> HeldWindow:
    """A window that has found that."""
    return HeldWindow([], None, 0, [], found)


def message(own: Mapping[int, HeldWindow | ReadFailure], lot: Lot = LOT, step: int = 0) -> Any:
    """What a rank tells the others."""
    with pytest.raises(Said) as said:
        settled_by_all(lot, step, own, cast("Peers", Silent()), SHARDS)
    return said.value.args[0]


def settled(
    *everyones: Own, lots: tuple[Lot, ...] = (), steps: tuple[int, ...] = ()
) -> list[Settled | ElasticError]:
    """What becomes of a lot on each rank."""
    places = [
        (lots[rank] if lots else LOT, steps[rank] if steps else 0) for rank in range(len(everyones))
    ]
    told = [message(own, *place) for own, place in zip(everyones, places, strict=True)]
    results: list[Settled | ElasticError] = []
    for rank, (own, place) in enumerate(zip(everyones, places, strict=True)):
        try:
            results.append(settled_by_all(*place, own, cast("Peers", Gathered(rank, told)), SHARDS))
        except ElasticError as error:
            results.append(error)
    return results


def refused(results: list[Settled | ElasticError], kind: type[ElasticError]) -> str:
    """The error that all ranks have raised."""
    (text,) = {str(result) for result in results}
    assert [type(result) for result in results] == [kind] * len(results)
    return text


@pytest.mark.parametrize(
    "split",
    [
        [[0, 1, 2]],
        [[0], [1, 2]],
        [[2], [1], [0]],  # whoever tells it
        [[], [2, 0], [1], []],
        [[0, 1], [1, 2]],  # two may tell the same
    ],
)
def test_all_ranks_settle_the_same(split: list[list[int]]) -> None:
    own: list[Own] = [{n: held(FOUND[n]) for n in streams} for streams in split]
    expected = settle(LOT, FOUND)
    assert expected.used == (5, 22, 21)
    assert settled(*own) == [expected] * len(split)


def test_a_message_is_short_plain_json() -> None:
    """Whatever the lot consists of: it goes round with each."""
    many = replace(LOT, places=LOT.places * 1000)
    told = message({1: held(FOUND[1])}, many, 3)
    assert json.loads(json.dumps(told)) == told
    assert len(json.dumps(told)) < 200
    assert told["at"].startswith("epoch 2, lot 0, step 3, ")


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("final", [True, False])
def test_a_shard_that_one_rank_cannot_read_is_an_error_on_all(rank: int, final: bool) -> None:
    own: list[Own] = [{n: held(found)} for n, found in enumerate(FOUND)]
    own[rank] = {rank: ReadFailure("the shard a.tar is gone", final)}
    text = refused(settled(*own), BrokenShard if final else ShardsUnreachable)
    assert text == f"rank {rank}: the shard a.tar is gone"


def test_a_shard_that_cannot_be_read_is_named_next_to_others_that_can() -> None:
    own: list[Own] = [
        {0: held(FOUND[0]), 1: ReadFailure("no answer", False), 2: held(FOUND[2])},
        {},
    ]
    assert refused(settled(*own), ShardsUnreachable) == "rank 0: no answer"


def test_of_several_failures_all_ranks_raise_the_same() -> None:
    own: list[Own] = [
        {0: held(FOUND[0])},
        {1: ReadFailure("one", True)},
        {2: ReadFailure("two", True)},
    ]
    assert refused(settled(*own), BrokenShard) == "rank 1: one"


def test_a_failure_counts_before_different_places() -> None:
    """It may be why a rank is elsewhere."""
    own: list[Own] = [{0: ReadFailure("gone", True)}, {1: held(FOUND[1])}]
    assert refused(settled(*own, steps=(0, 1)), BrokenShard) == "rank 0: gone"


@pytest.mark.parametrize(
    ("other", "step"),
    [
        (LOT, 1),
        (replace(LOT, number=1), 0),
        (replace(LOT, epoch=1), 0),
        (replace(LOT, places=(*LOT.places[:2], LOT.places[2]._replace(skip=1))), 0),
        (replace(LOT, places=(*LOT.places[:2], LOT.places[2]._replace(mark=[0]))), 0),
    ],
)
def test_ranks_at_different_places_are_refused(other: Lot, step: int) -> None:
    own: list[Own] = [{n: held(found)} for n, found in enumerate(FOUND)]
    results = settled(*own, lots=(LOT, other, LOT), steps=(0, step, 0))
    text = refused(results, UsageError)
    assert "different places" in text
    assert f"rank 0: epoch 2, lot 0, step 0, {message({})['at'][-8:]}, rank 1: " in text
    assert f"rank 1: epoch {other.epoch}, lot {other.number}, step {step}, " in text


def test_the_text_for_many_ranks_at_different_places_is_short() -> None:
    own: list[Own] = [{} for _ in range(100)]
    assert len(refused(settled(*own, steps=tuple(range(100))), UsageError)) < 600
    lots = tuple(replace(LOT, rules=replace(LOT.rules, seed=seed)) for seed in range(100))
    assert len(refused(settled(*own, lots=lots), UsageError)) < 600


@pytest.mark.parametrize(
    ("setting", "rules"),
    [
        ("their number of shards (1 on rank 1; 9 on", replace(LOT.rules, shards=1)),
        ("batch_size= (8 on rank 1; 4 on", replace(LOT.rules, batch=8, seed=3)),
        ("streams= (2 on rank 1; 3 on", replace(LOT.rules, streams=2)),
        ("shuffle_buffer= (100 on rank 1; 0 on", replace(LOT.rules, shuffle=100)),
        ("seed= (1 on rank 1; 0 on", replace(LOT.rules, seed=1)),
    ],
)
def test_ranks_with_other_settings_are_told_which(setting: str, rules: EpochRules) -> None:
    own: list[Own] = [{n: held(found)} for n, found in enumerate(FOUND)]
    lots = (LOT, begin_epoch(rules, 2), LOT)
    text = refused(settled(*own, lots=lots), UsageError)
    assert text.startswith(f"the streams of the ranks differ in {setting} ranks 0, 2): ")


def test_one_rank_of_many_with_other_settings_is_named() -> None:
    own: list[Own] = [{} for _ in range(100)]
    other = begin_epoch(replace(LOT.rules, seed=7), 2)
    text = refused(settled(*own, lots=(*[LOT] * 77, other, *[LOT] * 22)), UsageError)
    assert "seed= (7 on rank 77; 0 on ranks 0, 1, 2, 3 and 95 more)" in text


def test_ranks_with_different_shards_are_refused() -> None:
    everything: Own = {n: held(found) for n, found in enumerate(FOUND)}
    text = refused(settled(everything, {1: held(WindowFound(17, 2, 3))}), UsageError)
    shard = LOT.places[1].shards[0]
    assert f"in the same shard (number {shard}): 22 and 17, up to" in text


def test_ranks_that_go_on_at_different_places_are_refused() -> None:
    """With as many samples: the shards are not the same all the same."""
    own: list[Own] = [
        {n: held(found) for n, found in enumerate(FOUND)},
        {2: held(FOUND[2]._replace(mark=8))},
    ]
    text = refused(settled(*own), UsageError)
    assert "different samples in the same shard" in text
    assert text.endswith("and 8; all nodes must have the same shards")


def test_only_what_will_never_be_readable_is_a_broken_shard() -> None:
    """A job is not started again for that."""
    assert type(failure(ReadFailure("x", True))) is BrokenShard
    passing = failure(ReadFailure("x", False))
    assert type(passing) is ShardsUnreachable
    assert not isinstance(passing, UsageError)
    assert str(passing) == "x"


def test_ranks_with_other_lists_are_refused_whatever_is_in_them() -> None:
    other = ShardList(["a", "b"], "jsonl", None, "[1]")
    peers = Gathered(0, [message({}), message({}) | {"shards": other.identity}])
    with pytest.raises(UsageError, match=r"ranks have other shards, .* the whole list"):
        settled_by_all(LOT, 0, {}, cast("Peers", peers), SHARDS)
