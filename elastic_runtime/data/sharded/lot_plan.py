"""Which samples of which shards make up the next steps; pure, and the same on every rank.

The shards of an epoch wait in one queue. A fixed number of *streams* takes from it: each reads one
shard after the other. A *lot* is some steps' worth of samples, so many from each stream (its
*window*). Nobody knows how many samples a shard has before it is read to its end: so the windows of
a lot are read first, ranks tell each other how many samples each has given, and from that the lot
is *settled*: how many samples count, in which steps, and where each stream goes on.

What is agreed on is the place of each stream at the beginning of a lot, and how many steps of the
lot are committed. No rank owns anything: whoever reads a window from its beginning finds the same.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elastic_runtime.data.sample_seeds import generator
from elastic_runtime.data.sampler import pieces_of, share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

# A lot has at least so many steps: ranks exchange a message for each lot.
LEAST_STEPS = 16


@dataclass(frozen=True, slots=True)
class EpochRules:
    """What does not change within an epoch, but for the batch, which may from lot to lot.

    Attributes:
        shards: how many there are.
        batch: samples in a global batch.
        streams: how many shards are read at the same time.
        shuffle: samples that are shuffled among each other; 0: nothing is shuffled.
        seed: of the order of the shards, and of the samples in a lot.
    """

    shards: int
    batch: int
    streams: int
    shuffle: int
    seed: int

    @property
    def lot_size(self) -> int:
        """How many samples a lot has, if there are so many: whole steps."""
        return self.batch * max(LEAST_STEPS, -(-self.shuffle // self.batch))

    def order(self, epoch: int) -> list[int]:
        """The shards in the order in which they are begun.

        Args:
            epoch: from 0.
        """
        if not self.shuffle:
            return list(range(self.shards))
        rng = generator("shards", self.seed, epoch)
        return [int(n) for n in torch.randperm(self.shards, generator=rng, device="cpu")]


class Place(NamedTuple):
    """Where a stream is.

    Attributes:
        shards: those that it has been given and not finished, by number; it reads the first.
        mark: where in the first: plain JSON, as the reader of such shards understands it; None:
            at its beginning.
        skip: how many samples after the mark have been taken as well.
    """

    shards: tuple[int, ...]
    mark: Any = None
    skip: int = 0


class WindowFound(NamedTuple):
    """What reading a window has found.

    Attributes:
        total: how many samples it has: fewer than asked for if the stream's shards are over.
        left: how many of the stream's shards are not known to be over.
        mark: where the first of these has been left.
    """

    total: int
    left: int
    mark: Any


@dataclass(frozen=True, slots=True)
class Lot:
    """Some steps' worth of samples, before it is known how many there are.

    Attributes:
        epoch: from 0.
        number: within the epoch, from 0.
        before: how many samples of the epoch came before it.
        rules: of the epoch.
        given: how many shards of the epoch's order have been given to streams.
        ended: how many shards are over.
        growth: by how much it is larger than usual, because the one before made no step.
        places: of the streams that are not over.
    """

    epoch: int
    number: int
    before: int
    rules: EpochRules
    given: int
    ended: int
    growth: int
    places: tuple[Place, ...]

    @property
    def sizes(self) -> list[int]:
        """How many samples are asked of each stream."""
        streams = len(self.places)
        ends = [share_of(self.rules.lot_size * self.growth, n, streams) for n in range(streams)]
        return [end - start for start, end in ends]

    @property
    def text(self) -> str:
        """It as JSON, for a checkpoint."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values | {"rules": asdict(self.rules)}, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Lot:
        """What ``text`` has described.

        Args:
            text: JSON.
        """
        values = json.loads(text)
        places = tuple(Place(tuple(shards), mark, skip) for shards, mark, skip in values["places"])
        rules = EpochRules(**values["rules"])
        return cls(**values | {"rules": rules, "places": places})


@dataclass(frozen=True, slots=True)
class Settled:
    """A lot of which all is known.

    Attributes:
        lot: itself.
        counts: how many samples each stream's window has.
        used: how many of them count, from the window's beginning.
        next: what follows, perhaps in the next epoch; with other rules that begins otherwise.
    """

    lot: Lot
    counts: tuple[int, ...]
    used: tuple[int, ...]
    next: Lot

    @property
    def last(self) -> bool:
        """No step of the epoch follows it."""
        return self.next.epoch > self.lot.epoch

    @property
    def steps(self) -> int:
        """How many steps it makes."""
        return -(-sum(self.used) // self.lot.rules.batch)


def begin_epoch(rules: EpochRules, epoch: int, given: int = 0) -> Lot:
    """The first lot of an epoch.

    Args:
        rules: of that epoch.
        epoch: from 0.
        given: how many shards of its order are left out.
    """
    streams = min(rules.streams, rules.shards - given)
    nothing = tuple(Place(()) for _ in range(streams))
    return _with_shards(Lot(epoch, 0, 0, rules, given, 0, 1, nothing))


def settle(lot: Lot, found: Sequence[WindowFound]) -> Settled:
    """Decides what a lot consists of.

    All that was found counts at the epoch's end; before, as many whole batches as it makes.

    Args:
        lot: which.
        found: by each of its streams.
    """
    counts = [each.total for each in found]
    shards = lot.rules.shards
    more = lot.given < shards or any(each.left for each in found)
    surplus = sum(counts) % lot.rules.batch if more else 0
    used = list(counts)
    # A stream that does not come to its window's end is read again from the window's beginning:
    # the fewer, the better.
    for stream in sorted(range(len(counts)), key=lambda n: (-counts[n], n)):
        kept_back = min(surplus, counts[stream])
        used[stream] -= kept_back
        surplus -= kept_back
    if not more:
        next_epoch = begin_epoch(lot.rules, lot.epoch + 1)
        return Settled(lot, tuple(counts), tuple(used), next_epoch)
    whole = [n for n, each in enumerate(found) if used[n] == each.total]
    over = sum(len(lot.places[n].shards) - found[n].left for n in whole)
    after = replace(
        lot,
        number=lot.number + 1,
        before=lot.before + sum(used),
        ended=lot.ended + over,
        growth=1 if any(used) else lot.growth * 2,
        places=tuple(map(_after, lot.places, lot.sizes, used, found)),
    )
    return Settled(lot, tuple(counts), tuple(used), _with_shards(after))


def _after(place: Place, size: int, used: int, found: WindowFound) -> Place:
    if used < found.total or not size:
        return place._replace(skip=place.skip + used)
    return Place(place.shards[len(place.shards) - found.left :], found.mark)


def _with_shards(lot: Lot) -> Lot:
    """The lot with shards for streams that may finish theirs; without streams that are over."""
    # One that is being read and one more; and, of small ones, as many as a window may take.
    wanted = 2 * lot.growth + max(lot.sizes, default=0) * lot.ended // max(1, lot.before)
    order = iter(islice(lot.rules.order(lot.epoch), lot.given, None))
    shards = [list(place.shards) for place in lot.places]
    before = sum(map(len, shards))
    all_of_them = before + lot.rules.shards - lot.given
    for depth in range(1, wanted + 1):
        short = [each for each in shards if len(each) < depth]
        for each in short:
            each.extend(islice(order, 1))
        if sum(map(len, shards)) == all_of_them:
            break
    places = tuple(
        place._replace(shards=tuple(each))
        for place, each in zip(lot.places, shards, strict=True)
        if each
    )
    given = lot.given + sum(map(len, shards)) - before
    return replace(lot, given=given, places=places)


class StepShare(NamedTuple):
    """What a rank gets in a step.

    Attributes:
        pieces: of each its samples, as their stream and their number in that stream's window; one
            of another rank where it has none.
        own: how many of each piece count.
        total: how many samples the global batch has.
    """

    pieces: list[list[tuple[int, int]]]
    own: list[int]
    total: int


class LotOrder:
    """The samples of a settled lot in the order of the steps."""

    def __init__(self, settled: Settled) -> None:
        """Mixes the streams evenly, and each window in itself if samples are to be shuffled."""
        lot = settled.lot
        self._batch = lot.rules.batch
        streams, numbers, times = [], [], []
        rng = generator("samples", lot.rules.seed, lot.epoch, lot.number)
        for stream, used in enumerate(settled.used):
            streams.append(torch.full((used,), stream, device="cpu"))
            in_order = torch.arange(used, device="cpu")
            shuffled = torch.randperm(used, generator=rng, device="cpu")
            numbers.append(shuffled if lot.rules.shuffle else in_order)
            times.append((2 * in_order + 1) * (1 << 30) // max(1, 2 * used))
        if not streams:
            self._streams = self._numbers = torch.zeros(0, dtype=torch.int64, device="cpu")
            return
        order = torch.sort(torch.cat(times), stable=True).indices
        self._streams, self._numbers = torch.cat(streams)[order], torch.cat(numbers)[order]

    def share(self, step: int, rank: int, ranks: int, at_once: int = 0) -> StepShare:
        """What a rank gets in a step of the lot.

        Args:
            step: from 0.
            rank: which share.
            ranks: how many shares.
            at_once: the most samples in a piece; 0: a share is one piece.
        """
        at = slice(step * self._batch, (step + 1) * self._batch)
        streams, numbers = self._streams[at], self._numbers[at]
        total = len(streams)
        # By stream: so a rank finds its samples in few windows, always about the same.
        order = torch.sort(streams, stable=True).indices
        cuts = pieces_of(total, rank, ranks, at_once)
        pieces = []
        for start, end in cuts:
            first = min(start, total - 1)  # more ranks than samples
            chosen = order[first : max(end, first + 1)]
            slots = zip(streams[chosen].tolist(), numbers[chosen].tolist(), strict=True)
            pieces.append(list(slots))
        return StepShare(pieces, [end - start for start, end in cuts], total)


def likely_streams(streams: int, rank: int, ranks: int) -> range:
    """The streams that a rank probably gets samples from, before the lot is settled.

    Args:
        streams: in the lot.
        rank: which.
        ranks: how many.
    """
    return range(rank * streams // ranks, -(-(rank + 1) * streams // ranks))


def told_by(stream: int, streams: int, ranks: int) -> int:
    """The rank that tells the others what a stream's window has given.

    Args:
        stream: which.
        streams: in the lot.
        ranks: how many.
    """
    return stream * ranks // streams
