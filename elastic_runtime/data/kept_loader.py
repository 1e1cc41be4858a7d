"""The ``DataLoader`` of ``elastic.loader``: it comes to rest while its worker waits for a round.

A loader with processes of its own has batches under way when a world ends: some are read, some
wait to be taken. torch drops them at the beginning of the next iteration, one after the other,
which takes some 5 to 10 ms where the data cost nothing, and all ranks wait. Here a thread does that
as soon as the round is left: it begins an iteration of nothing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from elastic_runtime.worker.round_breaks import settle_in_breaks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.data.sampler import ElasticBatchSampler


class KeptLoader(DataLoader[Any]):  # type: ignore[misc]  # torch has no types
    """A ``DataLoader`` whose processes stay, and are at rest when a round begins."""

    _elastic_settles: threading.Thread | None = None
    _elastic_error: BaseException | None = None

    def keep(self, sampler: ElasticBatchSampler) -> None:
        """Starts its processes now, while no rank waits for this one.

        What they read meanwhile is dropped before the first iteration.

        Args:
            sampler: its own.
        """
        self._elastic_sampler = sampler
        iter(self)
        settle_in_breaks(self)

    def settle(self) -> None:
        """Drops what is under way, in a thread; the next iteration waits for it."""
        self._rest()
        self._elastic_settles = threading.Thread(
            target=self._drop_all, name="elastic-loader", daemon=True
        )
        self._elastic_settles.start()

    def __iter__(self) -> Iterator[Any]:
        """Begins at the sampler's cursor.

        Raises:
            RuntimeError: one of its processes has ended.
        """
        self._rest()
        error, self._elastic_error = self._elastic_error, None
        if error is not None:
            raise error
        iterator: Iterator[Any] = super().__iter__()
        return iterator

    def _rest(self) -> None:
        thread, self._elastic_settles = self._elastic_settles, None
        if thread is not None:
            thread.join()

    def _drop_all(self) -> None:
        try:
            with self._elastic_sampler.silent():
                super().__iter__()
        except BaseException as error:  # the script shall see it, where it would have come
            self._elastic_error = error
