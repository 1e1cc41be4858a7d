"""What makes up the steps, and how ranks agree on it; shards are lists here."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice, product
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.data.sharded.lot_exchange import ShardsUnreachable, settled_by_all
from elastic_runtime.data.sharded.lot_plan import (
    EpochRules,
    Lot,
    LotOrder,
    Place,
    StepShare,
    WindowFound,
    begin_epoch,
    likely_streams,
    settle,
    told_by,
)
from elastic_runtime.data.sharded.shard_list import ShardList
from elastic_runtime.data.sharded.stream_tasks import HeldWindow, ReadFailure
from elastic_runtime.errors import BrokenShard, ElasticError, UsageError
from tests.unit.data.sharded.ranks import ThreadPeers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.data.sharded.lot_plan import Settled

# A shard and a number in it.
Sample = tuple[int, int]

# More lots than this without a step mean that it would never end.
MOST_BARREN = 40


def read(sizes: list[int], place: Place, size: int) -> tuple[list[Sample], WindowFound]:
    """What a stream gives, of shards that have so many samples; a mark is a number in a shard."""
    ahead = [(shard, n) for shard in place.shards for n in range(sizes[shard])]
    ahead = ahead[(place.mark or 0) + place.skip :]
    if len(ahead) < size:
        return ahead, WindowFound(len(ahead), 0, None)
    if not size:
        return [], WindowFound(0, len(place.shards), place.mark)
    shard, number = ahead[size - 1]
    left = len(place.shards) - place.shards.index(shard)
    return ahead[:size], WindowFound(size, left, number + 1)


@dataclass
class Played:
    """An epoch.

    Attributes:
        steps: the samples of each global batch.
        batches: how many each was to have.
        barren: how many lots made no step.
        next: the first lot of the next epoch.
    """

    next: Lot
    steps: list[list[Sample]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    barren: int = 0


def play(sizes: list[int], lot: Lot, ranks: int = 1, batches: list[int] | None = None) -> Played:
    """Plays from the beginning of an epoch to its end; each lot may have another batch size."""
    played = Played(lot)
    for size in cycle(batches or [lot.rules.batch]):
        lot = Lot.of_text(replace(lot, rules=replace(lot.rules, batch=size)).text)
        assert lot.before == sum(map(len, played.steps)) <= sum(sizes)
        windows = [read(sizes, *pair) for pair in zip(lot.places, lot.sizes, strict=True)]
        settled = settle(lot, [found for _, found in windows])
        order = LotOrder(settled)
        for step in range(settled.steps):
            slots = shared(order, step, ranks)
            played.steps.append([windows[stream][0][number] for stream, number in slots])
            played.batches.append(size)
        played.barren += not settled.steps
        assert played.barren < MOST_BARREN, "an epoch must end"
        played.next = lot = settled.next
        if settled.last:
            break
    return played


def shared(order: LotOrder, step: int, ranks: int) -> list[tuple[int, int]]:
    """The slots of a step, as ranks have them one after the other."""
    slots: list[tuple[int, int]] = []
    shares = [order.share(step, rank, ranks, at_once=step % 4) for rank in range(ranks)]
    assert len({len(share.pieces) for share in shares}) == 1
    for share in shares:
        assert share.total == shares[0].total
        for piece, own in zip(share.pieces, share.own, strict=True):
            assert len(piece) == max(1, own) <= (step % 4 or share.total)
            slots += piece[:own]
    own_shares = [sum(share.own) for share in shares]
    assert max(own_shares) - min(own_shares) <= 1
    assert sum(own_shares) == len(set(slots)) == shares[0].total
    every = {slot for share in shares for piece in share.pieces for slot in piece}
    assert every == set(slots), "one that counts nothing is of the same step"
    return slots


def check(sizes: list[int], played: Played) -> None:
    """Each sample once, and only the last batch may be smaller."""
    samples = [sample for step in played.steps for sample in step]
    assert sorted(samples) == [(s, n) for s, size in enumerate(sizes) for n in range(size)]
    *full, last = zip(played.steps, played.batches, strict=True) if samples else [([0], 1)]
    assert all(len(step) == batch for step, batch in full)
    assert 0 < len(last[0]) <= last[1]


shard_sizes = st.one_of(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.lists(st.integers(0, 2), min_size=1, max_size=150),
    st.lists(st.sampled_from([0, 0, 0, 0, 1, 50]), min_size=1, max_size=60),
    st.builds(
        lambda small, at, huge: [*small[:at], huge, *small[at:]],
        st.lists(st.integers(0, 3), max_size=20),
        st.integers(0, 20),
        st.integers(300, 1500),
    ),
)
batch_sizes = st.one_of(st.integers(1, 12), st.integers(13, 400))
rules = st.builds(
    EpochRules,
    shards=st.just(1),
    batch=batch_sizes,
    streams=st.one_of(st.integers(1, 12), st.integers(13, 90)),
    shuffle=st.one_of(st.just(0), st.integers(1, 1000)),
    seed=st.integers(0, 5),
)


@given(shard_sizes, rules, st.integers(0, 3))
def test_each_sample_counts_once_an_epoch_in_full_batches(
    sizes: list[int], rules: EpochRules, epoch: int
) -> None:
    lot = begin_epoch(replace(rules, shards=len(sizes)), epoch)
    for number in range(epoch, epoch + 3):
        assert (lot.epoch, lot.number, lot.before) == (number, 0, 0)
        played = play(sizes, lot)
        check(sizes, played)
        assert played.next == begin_epoch(lot.rules, number + 1)
        lot = played.next


@given(shard_sizes, rules, st.integers(2, 40))
def test_the_steps_are_the_same_for_any_number_of_ranks(
    sizes: list[int], rules: EpochRules, ranks: int
) -> None:
    lot = begin_epoch(replace(rules, shards=len(sizes)), 0)
    assert play(sizes, lot, ranks) == play(sizes, lot)


@given(shard_sizes, rules, st.lists(batch_sizes, min_size=2, max_size=5))
def test_batches_may_get_another_size_between_two_lots(
    sizes: list[int], rules: EpochRules, batches: list[int]
) -> None:
    lot = begin_epoch(replace(rules, shards=len(sizes)), 0)
    check(sizes, play(sizes, lot, 1, batches))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), rules)
def test_without_shuffling_a_shard_is_in_order(sizes: list[int], rules: EpochRules) -> None:
    played = play(sizes, begin_epoch(replace(rules, shards=len(sizes), shuffle=0), 0))
    samples = [sample for step in played.steps for sample in step]
    for shard, size in enumerate(sizes):
        assert [n for s, n in samples if s == shard] == list(range(size))


def test_one_stream_without_shuffling_goes_through_all_in_order() -> None:
    sizes = [3, 0, 40, 1, 1]
    played = play(sizes, begin_epoch(EpochRules(5, 4, 1, 0, 0), 0))
    in_order = [(shard, n) for shard, size in enumerate(sizes) for n in range(size)]
    assert played.steps == [in_order[n : n + 4] for n in range(0, 45, 4)]


@pytest.mark.parametrize(
    ("sizes", "batch", "most"),
    [
        ([1] * 1000, 8, 1),  # its shards are of one size: it is known how many are needed
        ([1000] * 8, 8, 1),
        ([5] * 20, 400, 3),  # a batch is more than there is
        ([0] * 200 + [100], 8, 3),
        ([0], 4, 4),
        ([0] * 300, 4, 4),
    ],
)
def test_few_lots_make_no_step(sizes: list[int], batch: int, most: int) -> None:
    played = play(sizes, begin_epoch(EpochRules(len(sizes), batch, 8, 0, 0), 0))
    assert played.barren <= most


def test_a_lot_has_the_steps_that_are_due() -> None:
    few = EpochRules(shards=8, batch=6, streams=4, shuffle=0, seed=0)
    assert few.lot_size == 96
    assert begin_epoch(few, 0).sizes == [24, 24, 24, 24]
    assert replace(few, shuffle=97).lot_size == 102  # whole steps
    more = begin_epoch(replace(few, streams=5, shuffle=97), 0)
    assert more.sizes == [21, 21, 20, 20, 20]
    assert replace(more, growth=2).sizes == [41, 41, 41, 41, 40]


def lot_of(*places: Place, given: int = 9, growth: int = 1) -> Lot:
    """One with few shards left: of nine."""
    return Lot(0, 3, 100, EpochRules(9, 4, 3, 0, 0), given, 2, growth, places)


def over(total: int) -> WindowFound:
    """So many samples, after which the stream has no more shards."""
    return WindowFound(total, 0, None)


def test_a_window_that_was_trimmed_goes_on_where_it_ended() -> None:
    lot = lot_of(Place((5, 6), 7, 2), Place((3,)), Place((8,), 1))
    settled = settle(lot, [WindowFound(22, 1, 4), over(3), WindowFound(5, 1, 6)])
    assert settled.counts == (22, 3, 5)
    assert settled.used == (20, 3, 5)  # from the longest: the fewest samples are read again
    assert (settled.steps, settled.last) == (7, False)
    # Where it was, and what counts of its window is skipped; the second stream is over.
    assert settled.next == replace(
        lot, number=4, before=128, ended=3, places=(Place((5, 6), 7, 22), Place((8,), 6))
    )


def test_a_window_of_which_nothing_counts_begins_again() -> None:
    lot = lot_of(Place((5,), 7, 2), Place((3,), 2))
    settled = settle(lot, [over(1), WindowFound(2, 1, 4)])
    assert (settled.used, settled.steps, settled.last) == ((0, 0), 0, False)
    assert settled.next == replace(lot, number=4, growth=2)
    # It grows until there is a step.
    again = settle(replace(settled.next, growth=8), [over(1), WindowFound(2, 1, 4)])
    assert again.next.growth == 16
    step = settle(again.next, [over(1), WindowFound(5, 1, 9)])
    assert (step.used, step.next.growth) == ((1, 3), 1)


def test_a_stream_that_is_asked_for_nothing_stays_where_it_is() -> None:
    """More streams than a lot has samples, as after the batch has become smaller."""
    places = tuple(Place((n,), 3, 2) for n in range(17))
    lot = Lot(0, 3, 100, EpochRules(17, 1, 17, 0, 0), 17, 0, 1, places)
    assert lot.sizes == [1] * 16 + [0]
    found = [WindowFound(size, 1, 9) for size in lot.sizes]
    assert settle(lot, found).next.places == (*(Place((n,), 9) for n in range(16)), places[16])


def test_the_last_step_has_what_is_left() -> None:
    settled = settle(lot_of(Place((5,)), Place((3,))), [over(5), over(2)])
    assert (settled.used, settled.steps, settled.last) == ((5, 2), 2, True)
    # A shard that may not be over, or was not given yet, makes it another lot.
    for dealt, left in ((9, 1), (8, 0)):
        lot = lot_of(Place((5,)), Place((3,)), given=dealt)
        settled = settle(lot, [WindowFound(5, left, 5), over(2)])
        assert (settled.used, settled.steps, settled.last) == ((2, 2), 1, False)


def test_streams_get_shards_in_turn_and_several_of_small_ones() -> None:
    rules = EpochRules(shards=100, batch=4, streams=2, shuffle=0, seed=0)
    lot = begin_epoch(rules, 0)
    assert [place.shards for place in lot.places] == [(0, 2), (1, 3)]
    # Four shards had two samples each; a window has 32, so that it takes 16 of them, and two more.
    after = settle(lot, [over(4), over(4)]).next
    assert (after.given, after.ended) == (40, 4)
    assert [place.shards for place in after.places] == [(*range(n, 40, 2),) for n in (4, 5)]


def test_a_stream_that_is_over_gets_the_last_shard() -> None:
    lot = lot_of(Place((5,)), Place((3,)), given=8)
    after = settle(lot, [WindowFound(5, 1, 4), over(3)]).next
    assert after.given == 9
    assert after.places == (Place((5,), 4), Place((8,)))


marks = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3)
    ),
    max_leaves=6,
)
places = st.builds(
    Place,
    st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple),
    marks,
    st.integers(0, 1 << 40),
)


@given(st.lists(places, max_size=4), st.integers(0, 1 << 40), st.integers(1, 64))
def test_a_lot_is_the_same_after_it_was_a_text(
    places: list[Place], before: int, growth: int
) -> None:
    lot = Lot(3, 7, before, EpochRules(100, 8, 4, 50, 6), 60, 40, growth, tuple(places))
    again = Lot.of_text(lot.text)
    assert again == lot
    assert (again.text, again.sizes) == (lot.text, lot.sizes)
    assert all(isinstance(place, Place) for place in again.places)
    # Its text is plain JSON, which a checkpoint may read and write as well.
    assert Lot.of_text(json.dumps(json.loads(lot.text))) == lot


@given(st.integers(1, 60), st.integers(1, 60))
def test_each_stream_is_told_of_by_a_rank_that_is_likely_to_read_it(
    streams: int, ranks: int
) -> None:
    likely = [likely_streams(streams, rank, ranks) for rank in range(ranks)]
    for stream in range(streams):
        assert stream in likely[told_by(stream, streams, ranks)]
    # Each rank has some, and together all, and no more than are needed for that.
    assert {stream for some in likely for stream in some} == set(range(streams))
    assert all(1 <= len(some) <= 1 + -(-streams // ranks) for some in likely)
    if streams % ranks == 0:
        assert sum(map(len, likely)) == streams


def full_lot(rules: EpochRules, number: int = 0, epoch: int = 0) -> LotOrder:
    """The order of one in which each stream gives what is asked of it."""
    lot = replace(begin_epoch(rules, epoch), number=number)
    return LotOrder(settle(lot, [WindowFound(size, 1, 0) for size in lot.sizes]))


@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(1, 3), st.sampled_from([0, 100]), st.data()
)
def test_in_an_even_lot_a_rank_needs_only_its_likely_streams(
    ranks: int, each: int, of_each: int, shuffle: int, data: Any
) -> None:
    streams = ranks * each
    rules = EpochRules(streams, streams * of_each, streams, shuffle, 0)
    order = full_lot(rules)
    rank = data.draw(st.integers(0, ranks - 1))
    likely = likely_streams(streams, rank, ranks)
    for step in range(rules.lot_size // rules.batch):
        # All of them, and evenly.
        share: StepShare = order.share(step, rank, ranks)
        (slots,) = share.pieces
        assert [stream for stream, _ in slots] == [n for n in likely for _ in range(of_each)]


def test_each_step_of_an_uneven_lot_has_some_of_each_stream() -> None:
    lot = lot_of(Place((5,)), Place((3,)))
    order = LotOrder(settle(lot, [WindowFound(48, 1, 0), WindowFound(16, 1, 0)]))
    steps = [[stream for stream, _ in order.share(n, 0, 1).pieces[0]] for n in range(16)]
    assert steps == [[0, 0, 0, 1]] * 16


def numbers(order: LotOrder, stream: int = 0) -> list[int]:
    """Which samples of a stream come after each other."""
    slots = [slot for step in range(16) for slot in order.share(step, 0, 1).pieces[0]]
    return [number for which, number in slots if which == stream]


def test_lots_and_streams_are_shuffled_each_in_its_way() -> None:
    rules = EpochRules(shards=9, batch=10, streams=2, shuffle=160, seed=1)
    each = product((1, 2), (0, 1), (0, 1))
    orders = [numbers(full_lot(replace(rules, seed=seed), *place)) for seed, *place in each]
    assert numbers(full_lot(rules)) == orders[0]
    orders.append(numbers(full_lot(rules), stream=1))
    assert all(sorted(order) == list(range(80)) for order in orders)
    assert len({*map(tuple, orders)}) == 9
    assert numbers(full_lot(replace(rules, shuffle=0))) == list(range(80))


def test_the_order_of_the_shards_depends_on_the_epoch_and_the_seed() -> None:
    rules = EpochRules(shards=50, batch=1, streams=1, shuffle=1, seed=3)
    orders = [replace(rules, seed=seed).order(epoch) for seed in (3, 4) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({*map(tuple, orders)}) == 4
    assert rules.order(0) == orders[0] == EpochRules(50, 7, 9, 90, 3).order(0)
    assert replace(rules, shuffle=0).order(1) == list(range(50))
    first = next(islice(begin_epoch(rules, 1).places, 1))
    assert list(first.shards) == rules.order(1)[:2]


# Ranks tell each other what they have read: all settle the same, or fail in the same way


SHARDS = ShardList(["a", "b"], "jsonl", None, "[]")
LOT = begin_epoch(EpochRules(shards=9, batch=4, streams=3, shuffle=0, seed=0), 2)
# One stream is over, one is in its first shard, and one in its second.
FOUND = [WindowFound(5, 0, None), WindowFound(22, 2, {"row": [1, None]}), WindowFound(21, 1, 9)]

Own = dict[int, HeldWindow | ReadFailure]

DOWN, GONE = ReadFailure("down", False), ReadFailure("gone", True)


def held(found: WindowFound) -> HeldWindow:
    """A window that has found that."""
    return HeldWindow([], None, 0, [], found)


# Each of three ranks has read another stream.
EACH: list[Own] = [{n: held(found)} for n, found in enumerate(FOUND)]


def settled(
    *everyones: Own,
    lots: Sequence[Lot] = (),
    steps: Sequence[int] = (),
    shards: Sequence[ShardList] = (),
) -> list[Settled | ElasticError]:
    """What becomes of a lot on each rank."""
    ranks = len(everyones)
    peers = ThreadPeers(ranks)

    def on(rank: int, lot: Lot, step: int, own: Own, list_: ShardList) -> Settled | ElasticError:
        try:
            return settled_by_all(lot, step, own, partial(peers.gather, rank), list_)
        except ElasticError as error:
            return error

    places = lots or [LOT] * ranks, steps or [0] * ranks, everyones, shards or [SHARDS] * ranks
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(on, range(ranks), *places))


def refused(*everyones: Own, kind: type[ElasticError] = UsageError, **places: Any) -> str:
    """The error that all ranks have raised."""
    results = settled(*everyones, **places)
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


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("final", [True, False])
def test_a_shard_that_one_rank_cannot_read_is_an_error_on_all(rank: int, final: bool) -> None:
    own: list[Own] = [*EACH]
    own[rank] = {rank: ReadFailure("the shard a.tar is gone", final)}
    text = refused(*own, kind=BrokenShard if final else ShardsUnreachable)
    assert text == f"rank {rank}: the shard a.tar is gone"


@pytest.mark.parametrize(
    ("own", "kind", "text"),
    [
        ([{0: held(FOUND[0]), 1: DOWN, 2: held(FOUND[2])}, {}], ShardsUnreachable, "rank 0: down"),
        ([EACH[0], {1: GONE}, {2: ReadFailure("two", True)}], BrokenShard, "rank 1: gone"),
        # What no other try will mend is told first.
        ([{0: DOWN, 1: GONE, 2: DOWN}], BrokenShard, "gone"),
        ([{0: DOWN}, {1: GONE}], BrokenShard, "rank 1: gone"),
    ],
)
def test_of_several_failures_all_ranks_raise_the_same(
    own: list[Own], kind: type[ElasticError], text: str
) -> None:
    """Also at different places: a failure may be why a rank is elsewhere."""
    assert refused(*own, kind=kind, steps=range(len(own))) == text


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
    text = refused(*EACH, lots=(LOT, other, LOT), steps=(0, step, 0))
    assert re.search("different places .*rank 0: epoch 2, lot 0, step 0, [0-9a-f]{8}, rank 1", text)
    assert f"rank 1: epoch {other.epoch}, lot {other.number}, step {step}, " in text


def test_what_many_ranks_tell_and_are_told_is_short() -> None:
    """Whatever the lot consists of, and wherever they are."""
    gather = Mock(side_effect=lambda message: [message])
    with pytest.raises(KeyError):  # nobody has read the other streams
        settled_by_all(replace(LOT, places=LOT.places * 1000), 3, EACH[1], gather, SHARDS)
    assert len(json.dumps(*gather.call_args.args)) < 200
    many: list[Own] = [{} for _ in range(100)]
    assert len(refused(*many, steps=range(100))) < 600
    lots = [replace(LOT, rules=replace(LOT.rules, seed=seed)) for seed in range(100)]
    assert len(refused(*many, lots=lots)) < 600
    text = refused(*many, lots=[*[LOT] * 77, lots[7], *[LOT] * 22])
    assert "seed= (7 on rank 77; 0 on ranks 0, 1, 2, 3 and 95 more)" in text


@pytest.mark.parametrize(
    ("setting", "rules"),
    [
        ("their number of shards (1 on rank 1; 9 on", replace(LOT.rules, shards=1)),
        ("global_batch_size= (8 on rank 1; 4 on", replace(LOT.rules, batch=8, seed=3)),
        ("streams= (2 on rank 1; 3 on", replace(LOT.rules, streams=2)),
        ("shuffle_buffer= (100 on rank 1; 0 on", replace(LOT.rules, shuffle=100)),
        ("seed= (1 on rank 1; 0 on", replace(LOT.rules, seed=1)),
    ],
)
def test_ranks_with_other_settings_are_told_which(setting: str, rules: EpochRules) -> None:
    text = refused(*EACH, lots=(LOT, begin_epoch(rules, 2), LOT))
    assert text.startswith(f"the streams of the ranks differ in {setting} ranks 0, 2): ")


@pytest.mark.parametrize(
    ("stream", "other", "told"),
    [
        (1, WindowFound(17, 2, 3), f"(number {LOT.places[1].shards[0]}): 22 and 17, up to"),
        (2, FOUND[2]._replace(mark=8), "and 8; all nodes must have the same shards"),
    ],
)
def test_ranks_with_different_shards_are_refused(
    stream: int, other: WindowFound, told: str
) -> None:
    """Also if these have as many samples, and the ranks go on at different places."""
    everything: Own = {n: held(found) for n, found in enumerate(FOUND)}
    text = refused(everything, {stream: held(other)})
    assert "different samples in the same shard" in text and told in text


def test_ranks_with_other_lists_are_refused_whatever_is_in_them() -> None:
    other = ShardList(["a", "b"], "jsonl", None, "[1]")
    text = refused({}, {}, shards=(SHARDS, other))
    assert re.search("ranks have other shards, .* the whole list", text)
