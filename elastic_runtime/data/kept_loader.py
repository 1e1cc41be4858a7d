"""What ``elastic.DataLoader`` reads with: between two rounds it drops, and reads ahead.

A loader with processes of its own has batches under way when a world ends: some are read, some
wait to be taken. At the beginning of the next iteration torch drops them, one after the other, and
waits for the first new one. That takes some 5 to 15 ms where the data cost nothing, and all ranks
wait. Here threads do it while this rank waits for its agent and for others: the batches are dropped
as soon as the round is left, by an iteration of nothing; and the new iteration begins as soon as
the next round is known, from where this process expects to continue. If it does not continue there,
what was read ahead is dropped as well.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from elastic_runtime.data.sampler import Shares
from elastic_runtime.worker.round_breaks import use_breaks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elastic_runtime.data.outlook import Outlook
    from elastic_runtime.data.sampler import ElasticBatchSampler

# Whether a loader of this process is known to be one for training: then others do not read ahead.
_some_train = False


class KeptLoader(DataLoader[Any]):  # type: ignore[misc]  # torch has no types
    """A ``DataLoader`` whose processes stay."""

    _elastic_sampler: ElasticBatchSampler
    _elastic_commits = 0  # of the sampler, when a round was left last
    _elastic_trains = False
    _elastic_used = False  # the script has iterated over it
    _elastic_done: threading.Event | None = None  # what a thread does; None: nothing
    # What a thread reads, or has read, ahead.
    _elastic_wanted: Outlook | None = None
    # Set by a thread: what has begun ahead, and torch's iterator for it.
    _elastic_ahead: tuple[Outlook, Shares, Iterator[Any]] | None = None
    # A process of it has ended, or did not get its data: torch cannot go on with it.
    _elastic_error: Exception | None = None

    def keep(self, sampler: ElasticBatchSampler) -> None:
        """Starts its processes now, while no rank waits for this one.

        What they read meanwhile is dropped before the first iteration.

        Args:
            sampler: its own.
        """
        self._elastic_sampler = sampler
        super().__iter__()
        use_breaks(self)

    def settle(self, *, first: bool) -> None:
        """Drops what is under way, in a thread; the next iteration waits for it.

        Args:
            first: no round was left yet: what the script has begun to iterate over is its own.
        """
        global _some_train
        if first and self._elastic_used:
            return
        if self._elastic_sampler.commits != self._elastic_commits:
            self._elastic_commits = self._elastic_sampler.commits
            self._elastic_trains = _some_train = True
        self._elastic_wanted = None
        self._begin_apart(None)

    def prepare(self, rank: int, world: int) -> None:
        """Begins the next iteration in a thread, from where the sampler is now.

        Args:
            rank: whose shares are to be read.
            world: of how many.
        """
        wanted = self._elastic_sampler.outlook(rank, world)
        if wanted != self._elastic_wanted and (self._elastic_trains or not _some_train):
            self._elastic_wanted = wanted
            self._begin_apart(wanted)

    def finish(self) -> None:
        """Its processes end with the program."""

    def __iter__(self) -> Iterator[Any]:
        """Begins at the sampler's cursor.

        Raises:
            RuntimeError: a process of the loader has ended.
            Exception: whatever else torch has met between two rounds.
        """
        ahead = self._take_ahead()
        if ahead is not None:
            outlook, shares, begun = ahead
            if outlook == self._elastic_sampler.outlook(*self._elastic_sampler.place):
                shares.begin()
                return begun
        iterator: Iterator[Any] = super().__iter__()
        return iterator

    def over(self, batches: Iterable[list[int]]) -> Iterator[Any]:
        """Begins an iteration over these batches, wherever the sampler is.

        Args:
            batches: indices of samples.

        Raises:
            RuntimeError: a process of the loader has ended.
            Exception: whatever else torch has met between two rounds.
        """
        self._take_ahead()
        with self._elastic_sampler.giving(batches):
            iterator: Iterator[Any] = super().__iter__()
        return iterator

    def _take_ahead(self) -> tuple[Outlook, Shares, Iterator[Any]] | None:
        """Waits for the thread, and gives what it has begun, if it has begun anything."""
        self._elastic_used = True
        if self._elastic_done is not None:
            # Not the thread itself: if a signal interrupts that, Python 3.11 takes it for ended.
            self._elastic_done.wait()
            self._elastic_done = None
        if self._elastic_error is not None:
            raise self._elastic_error
        ahead, self._elastic_ahead, self._elastic_wanted = self._elastic_ahead, None, None
        return ahead

    def _begin_apart(self, wanted: Outlook | None) -> None:
        done = threading.Event()

        def work(before: threading.Event | None) -> None:
            try:
                if before is not None:
                    before.wait()
                self._begin(wanted)
            finally:
                done.set()

        thread = threading.Thread(
            target=work, args=(self._elastic_done,), name="elastic-loader", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no room for it now: the next iteration does it
            self._elastic_wanted = None
        else:
            self._elastic_done = done

    def _begin(self, wanted: Outlook | None) -> None:
        """Has torch begin an iteration: over these shares, or over nothing."""
        self._elastic_ahead = None
        if self._elastic_error is not None:
            return
        shares: Shares | None = None
        if wanted is not None:
            try:
                shares = Shares(self._elastic_sampler, wanted)
            except Exception:  # of the user's order: it may be no epoch that the script will train
                return
        nothing: Iterable[list[int]] = ()
        try:
            with self._elastic_sampler.giving(nothing if shares is None else shares):
                iterator = super().__iter__()
        except Exception as error:
            self._elastic_error = error
            return
        if wanted is not None and shares is not None:
            self._elastic_ahead = wanted, shares, iterator
