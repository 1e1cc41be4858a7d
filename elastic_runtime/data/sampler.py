"""Which samples come next, in an order that does not depend on the number of ranks.

One order of the data set for each epoch, and a cursor in samples: each step takes the next
global batch from it and splits it over the ranks. The cursor moves when a step is committed, not
when a loader reads ahead, and it is saved with the model: so each sample counts once an epoch,
whatever happened, and the sequence of global batches is that of a run with one rank.
"""

from __future__ import annotations

import operator
import os
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.utils.data import Sampler

from elastic_runtime.data.epoch_order import Orders
from elastic_runtime.data.outlook import Outlook, Stretch
from elastic_runtime.data.sample_seeds import Batch, Moment, begin
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.world import FollowsWorld, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Sized

    import torch

    from elastic_runtime.data.epoch_order import Order


def share_of(count: int, rank: int, world: int) -> tuple[int, int]:
    """The part of ``count`` samples that a rank takes: shares differ by at most one.

    Args:
        count: samples in a global batch.
        rank: which share.
        world: how many shares.

    Returns:
        Its first and its last index plus one.
    """
    small, larger = divmod(count, world)
    start = rank * small + min(rank, larger)
    return start, start + small + (rank < larger)


def pieces_of(count: int, rank: int, world: int, at_once: int) -> list[tuple[int, int]]:
    """How a rank's share of a global batch is cut: in as many pieces as on all other ranks.

    The number follows from the largest share. A share is cut evenly, and not filled up: an empty
    piece takes a sample of another rank, which a normalization would see.

    Args:
        count: samples in the global batch.
        rank: whose share.
        world: how many shares.
        at_once: the most samples in a piece; 0: a share is one piece.

    Returns:
        Of each piece its first index in the global batch, and its last one plus one.
    """
    first, end = share_of(count, rank, world)
    largest = -(-count // world)
    number = max(1, -(-largest // at_once)) if at_once else 1
    cuts = [share_of(end - first, piece, number) for piece in range(number)]
    return [(first + start, first + stop) for start, stop in cuts]


def present_place() -> tuple[int, int]:
    """This rank and the number of ranks: of ``torch.distributed``, else of the launcher."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    world = World.of_environment(os.environ)
    return world.rank, world.size


def fixed_place(rank: int | None, world: int | None) -> tuple[int, int] | None:
    """The place that a script has named, if it has.

    Args:
        rank, world: as given.

    Raises:
        UsageError: there is no such place.
    """
    if rank is None and world is None:
        return None
    if rank is None or world is None or not 0 <= rank < world:
        raise UsageError(f"rank={rank} of world={world}: give both, with 0 <= rank < world")
    return rank, world


class ElasticBatchSampler(Sampler[list[int]], FollowsWorld):  # type: ignore[misc]
    """The ``batch_sampler`` of a ``DataLoader`` of ours: it gives the indices of each piece.

    Attributes:
        epoch: the epoch that the next step belongs to.
        cursor: how many samples of that epoch are committed.
        commits: how many steps were committed in this process.
        batch_size: samples in a step, over all ranks; setting takes effect at the next iteration.
        at_once: how many of them a rank holds at a time; 0: its whole share.
        drops_last: the last step of an epoch is left out if it is smaller.
        earlier: steps of which this rank takes other shares than those of the present world.
    """

    def __init__(
        self,
        data: Sized | int,
        batch_size: int,
        *,
        seed: int = 0,
        drop_last: bool = False,
        order: Order | None = None,
        replacement: bool = False,
        at_once: int | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """Starts at the first sample of epoch 0.

        Args:
            data: the data set, of which only the length is used, or that length.
            batch_size, seed, drop_last, order, replacement, at_once: see ``DataLoader``.
            rank, world: of this process; by default those of ``torch.distributed``, and without a
                process group those of the launcher.

        Raises:
            UsageError: an argument is out of range.
        """
        size = operator.index(data) if isinstance(data, int) else len(data)
        dropped = drop_last and not replacement and batch_size > size
        _check(size, batch_size, dropped=dropped, repeats=replacement and order is None)
        self._size, self._seed, self.drops_last = size, seed, drop_last
        self.batch_size = batch_size
        self.at_once = at_once or 0
        self._orders = Orders(size, order, replacement=replacement)
        self._place = fixed_place(rank, world)
        # What a thread gets instead of this rank's shares.
        self._given: dict[int, Iterable[list[int]]] = {}
        self.earlier: tuple[Stretch, ...] = ()
        self.epoch = 0
        self.cursor = 0
        self.commits = 0

    def __repr__(self) -> str:
        """Its settings and where it is."""
        rank, world = self.place
        return (
            f"{type(self).__name__}({self._orders.size}, batch_size={self.batch_size}, "
            f"seed={self._seed}; epoch {self.epoch}, cursor {self.cursor}, rank {rank} of {world})"
        )

    def enter(self, world: World) -> None:
        """Takes this rank's shares in another world from now on; ``elastic.run`` calls it."""
        self._place = world.rank, world.size

    def __len__(self) -> int:
        """Pieces that are left in the epoch."""
        return self._pieces(self._left(self.epoch, self.cursor))

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's shares of the global batches from the cursor to the end of the epoch."""
        given = self._given.get(threading.get_ident())
        if given is not None:
            return iter(given)
        shares = Shares(self, self.outlook(*self.place))
        shares.begin()
        return shares

    def outlook(self, rank: int, world: int) -> Outlook:
        """What an iteration would begin with now, as this rank of such a world."""
        return Outlook(
            self.epoch,
            self.cursor,
            self._seed,
            rank,
            world,
            self.batch_size,
            self.at_once,
            self.earlier,
        )

    def order_of(self, epoch: int) -> torch.Tensor:
        """The indices of all samples of an epoch."""
        return self._orders.of(self._seed, epoch)

    @property
    def order_digest(self) -> int:
        """A number that differs where the order of the present epoch does."""
        return self._orders.fingerprint(self._seed, self.epoch)

    def numbered(self, indices: Sequence[int], size: int) -> Iterator[Batch]:
        """Batches of these samples in turn, for a loader; they belong to the present epoch.

        Args:
            indices: of the samples.
            size: of a batch, but for the last.
        """
        moment = Moment(self._seed, self.epoch)
        for at in range(0, len(indices), size):
            begin(moment)  # for a loader without processes of its own, which loads it now
            yield Batch(indices[at : at + size], moment)

    def next_step(self, position: tuple[int, int], batch: int) -> tuple[int, tuple[int, int]]:
        """How many samples the global batch at a position has, and what follows it.

        Args:
            position: epoch and cursor.
            batch: samples in a whole one.
        """
        epoch, cursor = position
        after = self._normalized(epoch, cursor + batch)
        return min(batch, self._left(epoch, cursor)), after

    @contextmanager
    def giving(self, batches: Iterable[list[int]]) -> Iterator[None]:
        """Within the block, what iterates in this thread gets these batches."""
        self._given[threading.get_ident()] = batches
        try:
            yield
        finally:
            del self._given[threading.get_ident()]

    @property
    def epoch_length(self) -> int:
        """How many pieces the whole epoch has that the next step belongs to."""
        return self._pieces(self._left(self.epoch, 0))

    @property
    def steps_in_epoch(self) -> int:
        """How many steps the whole epoch has that the next one belongs to."""
        return self.steps_of(self.epoch)

    def steps_of(self, epoch: int) -> int:
        """How many steps a whole epoch has.

        Args:
            epoch: which.
        """
        return self._steps(self._left(epoch, 0))

    @property
    def steps_left(self) -> int:
        """How many steps are left in it."""
        return self._steps(self._left(self.epoch, self.cursor))

    @property
    def place(self) -> tuple[int, int]:
        """The rank whose shares these are, and of how many."""
        return self._place or present_place()

    def commit(self) -> None:
        """Moves the cursor past the global batch of the step that is now complete."""
        self.commits += 1
        self.epoch, self.cursor = self._after(self.epoch, self.cursor)

    def state_dict(self) -> dict[str, Any]:
        """The position, the same on every rank and for every number of ranks."""
        return {
            "epoch": self.epoch,
            "cursor": self.cursor,
            "seed": self._seed,
            "size": self._size,
            # What has counted can only be told apart from the rest by the order it came in.
            "order": self.order_digest if self.cursor else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved position; the order of samples is that of the run that saved it.

        The size of a batch and ``drop_last`` may have changed since. The data set and the order
        may have changed only if the position is the beginning of an epoch.

        Raises:
            UsageError: the rest of the epoch is not known here, since the data or their order is
                another one.
        """
        epoch, cursor, seed = state["epoch"], state["cursor"], state["seed"]
        if cursor:
            where = f"the saved position is {cursor} samples into epoch {epoch}"
            remedy = (
                "until that epoch is over; or load without this sampler, and set its epoch to the "
                "one to begin with"
            )
            if state["size"] != self._size:
                raise UsageError(
                    f"{where} of a data set of {state['size']} samples, this one has {self._size}; "
                    f"give the same data {remedy}"
                )
            if state["order"] != self._orders.fingerprint(seed, epoch):
                raise UsageError(
                    f"{where}, whose samples come in another order here; give the same order= "
                    f"and the same data {remedy}"
                )
        self._seed = seed
        self.epoch, self.cursor = self._normalized(epoch, cursor)

    # The walk through the epochs

    def _left(self, epoch: int, cursor: int) -> int:
        return self._orders.length(self._seed, epoch) - cursor

    def pieces_in(self, samples: int) -> int:
        """How many pieces a step of so many samples has in the present world."""
        return len(pieces_of(samples, 0, self.place[1], self.at_once)) if samples else 0

    def _steps(self, samples: int) -> int:
        """How many steps so many samples make."""
        whole, rest = divmod(samples, self.batch_size)
        return whole + (rest > 0 and not self.drops_last)

    def _pieces(self, samples: int) -> int:
        """How many pieces so many samples make."""
        whole, rest = divmod(samples, self.batch_size)
        last = 0 if self.drops_last else self.pieces_in(rest)
        return whole * self.pieces_in(self.batch_size) + last

    def _after(self, epoch: int, cursor: int) -> tuple[int, int]:
        here = (one.batch for one in self.earlier if (epoch, cursor) < one.until)
        return self._normalized(epoch, cursor + next(here, self.batch_size))

    def _normalized(self, epoch: int, cursor: int) -> tuple[int, int]:
        """This position, or the beginning of the next epoch if no step follows in this one."""
        enough = self.batch_size if self.drops_last else 1
        over = cursor > 0 and self._left(epoch, cursor) < enough
        return (epoch + 1, 0) if over else (epoch, cursor)


class Shares:
    """The shares of one rank, from the position of its sampler to the end of the epoch."""

    def __init__(self, sampler: ElasticBatchSampler, outlook: Outlook) -> None:
        """Starts there. Nothing is loaded by this process before ``begin``.

        Args:
            sampler: whose.
            outlook: where, and whose share.
        """
        self.sampler = sampler
        self._outlook = outlook
        self._begun = False
        self._cut: deque[list[int]] = deque()  # the pieces of the present step that are to come
        self._go_to(outlook.epoch, outlook.cursor)

    def begin(self) -> None:
        """The script iterates over them from now on."""
        self._begun = True
        begin(self._moment)

    def _go_to(self, epoch: int, cursor: int) -> None:
        sampler = self.sampler
        self._position = epoch, cursor
        self._cut.clear()
        self._moment = Moment(sampler._seed, epoch)
        self._order = sampler._orders.of(*self._moment)
        if sampler.drops_last and len(self._order) < sampler.batch_size:
            raise UsageError(
                f"epoch {epoch} has {len(self._order)} samples, and drop_last leaves nothing of "
                f"them with a batch of {sampler.batch_size}; take a smaller batch"
            )

    def __iter__(self) -> Shares:
        return self

    def __next__(self) -> Batch:
        epoch, cursor = self._position
        if epoch != self._moment.epoch:
            raise StopIteration
        share = self._outlook.at(self._position)
        if not self._cut:
            batch = self._order[cursor : cursor + share.batch].tolist()
            for first, end in pieces_of(len(batch), share.rank, share.world, share.at_once):
                # Without a share a rank must still take part: it takes a sample that another one
                # has as well, which counts nothing.
                self._cut.append(batch[first:end] or batch[:1])
        piece = self._cut.popleft()
        if not self._cut:  # only then is the step read: its pieces come again together
            self._position = self.sampler._normalized(epoch, cursor + share.batch)
        if self._begun:
            begin(self._moment)  # for a loader without processes of its own, which loads it now
        return Batch(piece, self._moment)


def _check(size: int, batch: int, *, dropped: bool, repeats: bool) -> None:
    """Refuses settings of a sampler that cannot be.

    Args:
        size: of the data set, in samples.
        batch: samples in a step.
        dropped: no sample would be left.
        repeats: replacement is allowed to an order that is not the user's.
    """
    if size < 1 or batch < 1:
        raise UsageError(f"{size} samples, of which a step has {batch}: give at least 1 of each")
    if dropped:
        raise UsageError(
            f"drop_last leaves nothing of {size} samples with a batch of {batch}; take a smaller "
            "batch, or do not drop the last one"
        )
    if repeats:
        raise UsageError("replacement=True is about an order= of your own; give one")
