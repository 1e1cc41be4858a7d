"""One iteration over a stream, in one world: from a step to the end of the epoch."""

from __future__ import annotations

import itertools
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_runtime.data.sample_seeds import Moment
from elastic_runtime.data.sharded.lot_exchange import failure, settled_by_all
from elastic_runtime.data.sharded.lot_plan import LotOrder, likely_streams, told_by
from elastic_runtime.data.sharded.stream_tasks import (
    BatchTask,
    HeldWindow,
    ReadFailure,
    ReadResult,
    WindowKey,
)
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_runtime.data.sharded.lot_plan import Lot, Settled, StepShare
    from elastic_runtime.data.sharded.shard_list import ShardList
    from elastic_runtime.data.sharded.stream_tasks import TaskLoader


class Committed(NamedTuple):
    """How far the job is; the same on all ranks.

    Attributes:
        lot: the one that the next step belongs to.
        step: which step of it that is.
        counts: how many samples its windows have; None: not known yet.
    """

    lot: Lot
    step: int
    counts: tuple[int, ...] | None


class GivenStep(NamedTuple):
    """A step that was given out.

    Attributes:
        pieces: the batches of this rank, which are waited for one by one.
        own: how many samples of each piece count.
        total: how many the global batch has.
        after: how far the job is once it is committed.
    """

    pieces: Iterator[Any]
    own: list[int]
    total: int
    after: Committed


class StreamWindows:
    """The windows that this rank has read, and how it comes by others."""

    def __init__(self, loader: TaskLoader) -> None:
        """Has none yet.

        Args:
            loader: reads them, and prepares batches.
        """
        self._loader = loader
        self._held: dict[WindowKey, HeldWindow | ReadFailure] = {}
        self._asked: set[WindowKey] = set()
        self._tickets = itertools.count()  # numbers of batches
        self._batches: dict[int, Any] = {}
        self._wanted: set[int] = set()

    def restart(self, lot: Lot) -> None:
        """An iteration begins: nothing is under way any more; what was read stays.

        Args:
            lot: the first that is needed.
        """
        self._loader.drop()
        self._asked.clear()
        self._batches.clear()
        self._wanted.clear()
        # What could not be read may be there by now.
        self._held = {k: w for k, w in self._held.items() if not isinstance(w, ReadFailure)}
        self.forget_before(lot)

    def forget_before(self, lot: Lot) -> None:
        """Frees the windows of earlier lots.

        Args:
            lot: the one that is to be kept.
        """
        self._loader.queue.keep_from = age = lot.epoch, lot.number
        for key in [k for k in self._held if (k.epoch, k.lot) < age]:
            del self._held[key]

    def ask(self, keys: list[WindowKey], batches: int) -> None:
        """Has windows read while so many batches are made; 0: at once."""
        new = [key for key in keys if key not in self._held and key not in self._asked]
        self._asked.update(new)
        if new:
            self._loader.queue.read(new, batches)

    def get(self, keys: list[WindowKey]) -> list[HeldWindow | ReadFailure]:
        """Waits for windows."""
        self.ask(keys, 0)
        queue = self._loader.queue
        queue.only_reads = True
        try:
            while any(key not in self._held for key in keys):
                self._take()
        finally:
            queue.only_reads = False
        return [self._held[key] for key in keys]

    def prepare(self, lot: Lot, slots: list[tuple[int, int]]) -> int:
        """Has a batch made in its turn, of windows that were got.

        Args:
            lot: of the samples.
            slots: see ``StepShare``.

        Returns:
            By what ``batch`` knows it.
        """
        keys = window_keys(lot)
        windows = {stream: self._held[keys[stream]] for stream in dict(slots)}
        for window in windows.values():
            if isinstance(window, ReadFailure):
                raise failure(window)
        ticket = next(self._tickets)
        self._wanted.add(ticket)
        moment = Moment(lot.rules.seed, lot.epoch)
        self._loader.queue.batch(partial(_batch_task, windows, slots, ticket, moment))
        return ticket

    def batch(self, ticket: int) -> Any:
        """Waits for a batch.

        Raises:
            BrokenShard: a sample could not be decoded.
            UsageError: it is not wanted any more.
        """
        while ticket not in self._batches:
            if ticket not in self._wanted:
                raise UsageError(
                    "this iteration over the stream was begun before another one; begin anew"
                )
            self._take()
        batch = self._batches.pop(ticket)
        if isinstance(batch, ReadFailure):
            raise failure(batch)
        return batch

    def _take(self) -> None:
        result = self._loader.result()
        if result is None:
            return
        if isinstance(result, ReadResult):
            self._held.update(result.windows)
            self._asked.difference_update(key for key, _ in result.windows)
            return
        ticket, batch = result
        if ticket in self._wanted:
            self._wanted.remove(ticket)
            self._batches[ticket] = batch


class StreamSteps:
    """Gives out the steps of an epoch."""

    def __init__(
        self,
        begin: Committed,
        windows: StreamWindows,
        gather: Callable[[Any], list[Any]],
        place: tuple[int, int],
        at_once: int,
        follow: Callable[[Settled], Lot],
        shards: ShardList,
    ) -> None:
        """Reads nothing yet.

        Args:
            begin: where it begins.
            windows: reads.
            gather: gives what all ranks have told.
            place: which share of each step is read, and of how many.
            at_once: the most samples in a piece; 0: a share is one piece.
            follow: the lot that comes after a settled one, under the present rules.
            shards: what is read.
        """
        self._begin = begin
        self._windows = windows
        self._gather = gather
        self._place = place
        self._at_once = at_once
        self._follow = follow
        self._shards = shards
        self._prepared: deque[tuple[list[int], StepShare]] = deque()

    def __iter__(self) -> Iterator[GivenStep]:
        """The steps, with what they are to the job."""
        lot, first, counts = self._begin
        present: Settled | None = self._settle(lot, first, counts)
        while present is not None:
            following: Settled | None = None
            after: Committed | None = None
            for step in range(first, present.steps):
                if after is None and step >= present.steps // 2:
                    # Half a lot ahead: so that there is always a step to be prepared. At its last
                    # step it must be known, since that may end the epoch.
                    following, after = self._next(present)
                last = step + 1 == present.steps
                then = after if last else Committed(present.lot, step + 1, present.counts)
                assert then is not None
                tickets, share = self._prepared.popleft()
                pieces = map(self._windows.batch, tickets)
                yield GivenStep(pieces, share.own, share.total, then)
            if after is None:  # a lot without steps, at the very beginning
                following, _ = self._next(present)
            present, first = following, 0

    def _next(self, present: Settled) -> tuple[Settled | None, Committed]:
        """The next lot that makes a step, None if none does; and how far the job is before it."""
        while True:
            lot = self._follow(present)
            if present.last:
                return None, Committed(lot, 0, None)
            present = self._settle(lot, 0, None)
            if present.steps:
                return present, Committed(lot, 0, present.counts)

    def _settle(self, lot: Lot, first: int, counts: tuple[int, ...] | None) -> Settled:
        rank, ranks = self._place
        keys = window_keys(lot)
        self._windows.ask(self._likely(lot), 0)
        told = [n for n in range(len(keys)) if told_by(n, len(keys), ranks) == rank]
        own = dict(zip(told, self._windows.get([keys[n] for n in told]), strict=True))
        settled = settled_by_all(lot, first, own, self._gather, self._shards)
        if counts is not None and counts != settled.counts:
            self._refuse_other_shards(lot, counts, settled.counts)
        order = LotOrder(settled)
        own_shares = [
            order.share(step, rank, ranks, self._at_once) for step in range(first, settled.steps)
        ]
        batches = [slots for share in own_shares for slots in share.pieces]
        if not settled.last:
            # In half of the time that there is, since they must not be waited for.
            self._windows.ask(self._likely(self._follow(settled)), max(1, len(batches) // 2))
        needed = sorted({stream for slots in batches for stream, _ in slots})
        self._windows.get([keys[stream] for stream in needed])
        for share in own_shares:
            tickets = [self._windows.prepare(lot, slots) for slots in share.pieces]
            self._prepared.append((tickets, share))
        return settled

    def _refuse_other_shards(self, lot: Lot, before: tuple[int, ...], now: tuple[int, ...]) -> None:
        pairs = zip(lot.places, before, now, strict=True)
        place, once, again = next(each for each in pairs if each[1] != each[2])
        names = ", ".join(self._shards.name(shard) for shard in place.shards[:3])
        raise UsageError(
            f"a part of the shards {names} had {once} samples, and has {again} now: shards must "
            "not change while an epoch is under way"
        )

    def _likely(self, lot: Lot) -> list[WindowKey]:
        keys = window_keys(lot)
        return [keys[stream] for stream in likely_streams(len(keys), *self._place)]


def _batch_task(
    windows: Mapping[int, Any],
    slots: list[tuple[int, int]],
    ticket: int,
    moment: Moment,
    keep_from: tuple[int, int],
) -> BatchTask:
    samples = [windows[stream].sample(number) for stream, number in slots]
    shards = [windows[stream].shard_of(number) for stream, number in slots]
    return BatchTask(ticket, moment, samples, shards, keep_from)


def window_keys(lot: Lot) -> list[WindowKey]:
    """The windows of a lot, by stream.

    Args:
        lot: which.
    """
    pairs = enumerate(zip(lot.places, lot.sizes, strict=True))
    return [WindowKey(lot.epoch, lot.number, n, place, size) for n, (place, size) in pairs]
