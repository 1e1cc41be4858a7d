"""The ``DataLoader`` of ``elastic.loader``: between two rounds it drops and reads ahead.

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
import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from elastic_runtime.worker.round_breaks import use_breaks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elastic_runtime.data.sampler import ElasticBatchSampler, Shares

# The loader that was iterated over last: of several, it is the one to read ahead with.
_latest: weakref.ref[KeptLoader] | None = None


class KeptLoader(DataLoader[Any]):  # type: ignore[misc]  # torch has no types
    """A ``DataLoader`` whose processes stay."""

    _elastic_sampler: ElasticBatchSampler
    _elastic_thread: threading.Thread | None = None
    # Set by a thread: the iteration that has begun ahead, and torch's iterator for it.
    _elastic_ahead: tuple[Shares, Iterator[Any]] | None = None
    _elastic_begun: Shares | None = None
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

    def settle(self) -> None:
        """Drops what is under way, in a thread; the next iteration waits for it."""
        self._elastic_begun = None
        self._begin_apart(None)

    def prepare(self, rank: int, world: int) -> None:
        """Begins the next iteration in a thread, from where the sampler is now.

        Args:
            rank: whose shares are to be read.
            world: of how many.
        """
        begun, sampler = self._elastic_begun, self._elastic_sampler
        if _latest is not None and _latest() is not self:
            return
        if begun is None or not begun.fits(sampler, (rank, world)):
            self._elastic_begun = sampler.shares_ahead(rank, world)
            self._begin_apart(self._elastic_begun)

    def __iter__(self) -> Iterator[Any]:
        """Begins at the sampler's cursor.

        Raises:
            RuntimeError: a process of the loader has ended.
            Exception: whatever else torch has met between two rounds.
        """
        global _latest
        _latest = weakref.ref(self)
        thread, self._elastic_thread = self._elastic_thread, None
        if thread is not None:
            thread.join()
        if self._elastic_error is not None:
            raise self._elastic_error
        ahead, self._elastic_ahead, self._elastic_begun = self._elastic_ahead, None, None
        sampler = self._elastic_sampler
        if ahead is not None and ahead[0].fits(sampler, sampler.place):
            ahead[0].begin()
            return ahead[1]
        iterator: Iterator[Any] = super().__iter__()
        return iterator

    def _begin_apart(self, shares: Shares | None) -> None:
        before = self._elastic_thread
        self._elastic_thread = threading.Thread(
            target=self._begin, args=(shares, before), name="elastic-loader", daemon=True
        )
        self._elastic_thread.start()

    def _begin(self, shares: Shares | None, before: threading.Thread | None) -> None:
        """Has torch begin an iteration: over these shares, or over nothing."""
        if before is not None:
            before.join()
        self._elastic_ahead = None
        nothing: Iterable[list[int]] = ()
        try:
            with self._elastic_sampler.giving(nothing if shares is None else shares):
                iterator = super().__iter__()
        except Exception as error:
            self._elastic_error = error
            return
        if shares is not None:
            self._elastic_ahead = shares, iterator
