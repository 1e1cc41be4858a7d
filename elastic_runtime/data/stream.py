"""Iterable data sets, for those who accept that a sample may count more than once.

The samples of a stream have no numbers, so their order is that of the stream: every process of
every rank reads all of it, and keeps its shares of the global batches. The position is the number
of committed samples of the epoch; to continue there, as many samples are read and dropped. That is
right as long as the stream gives the same samples in the same order each time. Nothing here can
check that, hence the name of the option, ``at_least_once``.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from elastic_runtime.data.sample_seeds import Moment, begin
from elastic_runtime.data.sampler import present_place
from elastic_runtime.data.sigterm_shield import Shielded, end_with_program
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.world import FollowsWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from elastic_runtime.worker.world import World


class Share(NamedTuple):
    """The part of a global batch that belongs to a rank.

    Attributes:
        own: how many samples count for this rank.
        total: how many the global batch has.
        last: no batch of the epoch follows.
    """

    own: int
    total: int
    last: bool


_END: Any = object()


class _Reader(IterableDataset[Any]):  # type: ignore[misc]
    """What one process of one rank gives: its shares of its turns, from a stream of its own."""

    def __init__(self, stream: Iterable[Any], batch: int, seed: int) -> None:
        self._stream = stream
        self.batch = batch
        self._seed = seed
        # Epoch, cursor, rank, world. Processes outlive an iteration, and read this at the next.
        self._where = torch.zeros(4, dtype=torch.int64, device="cpu").share_memory_()

    def aim(self, epoch: int, cursor: int, rank: int, world: int) -> None:
        """The next iteration, in whatever process, begins at this position."""
        self._where.copy_(torch.tensor([epoch, cursor, rank, world], device="cpu"))

    def __iter__(self) -> Iterator[tuple[list[Any], Share]]:
        epoch, cursor, rank, world = self._where.tolist()
        return self._shares(self._samples(epoch, cursor), rank, world)

    def _samples(self, epoch: int, cursor: int) -> Iterator[Any]:
        moment = Moment(self._seed, epoch)
        begin(moment)
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)
        samples = iter(self._stream)
        for _ in islice(samples, cursor):
            pass
        while True:
            begin(moment)  # another stream may have been read meanwhile, by the same process
            sample = next(samples, _END)
            if sample is _END:
                return
            yield sample

    def _shares(
        self, samples: Iterator[Any], rank: int, world: int
    ) -> Iterator[tuple[list[Any], Share]]:
        worker = get_worker_info()
        turn, turns = (worker.id, worker.num_workers) if worker else (0, 1)
        number, ahead = 0, next(samples, _END)
        while ahead is not _END:
            first, own, count = ahead, [], 0
            while count < self.batch and ahead is not _END:
                # By turns, since how many there are is only known at the end.
                if number % turns == turn and count % world == rank:
                    own.append(ahead)
                count += 1
                ahead = next(samples, _END)
            if number % turns == turn:
                # Without a share a rank takes part with a sample of another, as in the sampler.
                yield own or [first], Share(len(own), count, last=ahead is _END)
            number += 1


class StreamLoader(FollowsWorld):
    """The batches of this rank from an iterable data set; ``elastic.loader`` makes it.

    It is its own sampler: an entry of the ``Checkpointer`` and the ``State``, committed with each
    step, with ``epoch``, ``cursor`` and ``loss_scale``.

    Attributes:
        epoch: the epoch that the next step belongs to.
        cursor: how many samples of that epoch are committed.
    """

    def __init__(self, stream: Iterable[Any], batch: int, seed: int, options: dict[str, Any]):
        """Starts at the first sample of epoch 0.

        Args:
            stream: gives the same samples in the same order whenever an epoch of it is iterated.
            batch: samples in a global batch.
            seed: for ``sample_rng``.
            options: of ``DataLoader``.
        """
        self._reader = _Reader(stream, batch, seed)
        collate = options.pop("collate_fn", None) or default_collate
        keep = options.get("num_workers", 0) > 0
        if keep:
            options = {**options, "worker_init_fn": Shielded(options.get("worker_init_fn"))}
        self._loader: DataLoader[Any] = DataLoader(
            self._reader,
            batch_size=None,
            collate_fn=partial(_collated, collate),
            persistent_workers=keep,
            **options,
        )
        if keep:
            end_with_program(self._loader)
        self._place: tuple[int, int] | None = None
        self._under_way: deque[Share] = deque()
        self.epoch = 0
        self.cursor = 0

    def __repr__(self) -> str:
        """Its batch and where it is."""
        rank, world = self.place
        return (
            f"{type(self).__name__}(batch_size={self._reader.batch}; "
            f"epoch {self.epoch}, cursor {self.cursor}, rank {rank} of {world})"
        )

    def enter(self, world: World) -> None:
        """Takes this rank's shares in another world from now on; ``elastic.run`` calls it."""
        self._place = world.rank, world.size
        self._under_way.clear()

    def __iter__(self) -> Iterator[Any]:
        """This rank's batches from the cursor to the end of the epoch."""
        self._under_way.clear()
        self._reader.aim(self.epoch, self.cursor, *self.place)
        return self._deliver(iter(self._loader))

    def _deliver(self, batches: Iterator[tuple[Any, Share]]) -> Iterator[Any]:
        nothing = True
        for batch, share in batches:
            nothing = False
            self._under_way.append(share)
            yield batch
        if nothing:
            raise UsageError(
                f"the data set gave no sample after the {self.cursor} of epoch {self.epoch} that "
                "are committed; it must give the same samples each time it is iterated"
            )

    @property
    def place(self) -> tuple[int, int]:
        """The rank whose shares these are, and of how many."""
        return self._place or present_place()

    @property
    def loss_scale(self) -> float:
        """What to multiply this rank's mean loss with, in the step that is under way."""
        if not self._under_way:
            raise UsageError("loss_scale belongs to a batch, and none has been taken")
        share = self._under_way[0]
        return share.own * self.place[1] / share.total

    def commit(self) -> None:
        """Moves the cursor past the oldest batch that was taken and not committed yet."""
        if not self._under_way:
            return
        share = self._under_way.popleft()
        self.cursor += share.total
        if share.last:
            self.epoch, self.cursor = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The position, the same on every rank and for every number of ranks."""
        return {"epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved position; iterations that were begun before are void."""
        self._under_way.clear()
        self.epoch, self.cursor = state["epoch"], state["cursor"]


def _collated(collate: Callable[[list[Any]], Any], given: tuple[list[Any], Share]) -> Any:
    samples, share = given
    return collate(samples), share
