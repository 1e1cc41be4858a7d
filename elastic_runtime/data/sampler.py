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
from collections.abc import Iterable, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from torch.utils.data import IterableDataset, Sampler

from elastic_runtime.data.epoch_order import Orders
from elastic_runtime.data.outlook import Outlook, Stretch
from elastic_runtime.data.sample_seeds import Batch, Moment, begin
from elastic_runtime.data.second_split import refuse_second_split
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.state import missing_parts
from elastic_runtime.worker.world import FollowsWorld, World

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from elastic_runtime.data.epoch_order import Order

T = TypeVar("T")

NO_POSITIONS = (
    "an IterableDataset has no numbered samples, so that it is not known after a fault which of "
    "them have counted; give a map-style data set (__len__ and __getitem__, over an index of files "
    "or records), read shards in order with elastic.ShardedStream, or accept that a sample may "
    "count more than once: "
    "elastic.loader(dataset, batch_size=64, at_least_once=True)"
)


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


class ElasticBatchSampler(Sampler[list[int]], FollowsWorld):  # type: ignore[misc]
    """A ``batch_sampler`` for a ``DataLoader`` over a map-style data set.

    Example::

        sampler = ElasticBatchSampler(data, batch_size=64, seed=1)
        loader = DataLoader(data, batch_sampler=sampler)
        while sampler.epoch < epochs:
            for inputs, targets in loader:
                loss = criterion(ddp(inputs), targets) * sampler.loss_scale
                ...
                ckpt.step()     # commits the sampler, which is one of its entries

    Attributes:
        epoch: the epoch that the next step belongs to.
        cursor: how many samples of that epoch are committed.
        commits: how many steps were committed in this process.
        earlier: batches of which this rank takes other shares than those of the present world.
    """

    def __init__(
        self,
        data: Sized | int | None = None,
        batch_size: int | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
        order: Order | None = None,
        replacement: bool = False,
        micro_batch_size: int | None = None,
        at_once: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        size: int | None = None,
        batch: int | None = None,
    ) -> None:
        """Starts at the first sample of epoch 0.

        Args:
            data: the data set, of which only the length is used, or that length.
            batch_size: samples in a global batch, over all ranks; the last one of an epoch may be
                smaller.
            seed: of the order, and of ``elastic.sample_rng``. Once there is a saved state, its
                seed counts.
            drop_last: leave out the last batch of an epoch if it is smaller (of micro-batches, the
                last one).
            order: ``order(epoch, rng)`` gives the indices of an epoch in the order that they
                shall come in; all randomness must be taken from ``rng``, a ``torch.Generator``
                that (seed, epoch) decides. None: a random permutation.
            replacement: ``order`` may name samples more than once, or leave some out.
            micro_batch_size: for gradient accumulation: a global batch comes in pieces of so many
                samples, over all ranks, and a commit is made once it has come whole. None: in one.
            at_once: how many samples a rank holds at a time: its share comes in pieces of at most
                so many, as many on all ranks. None: in one; not together with micro_batch_size.
            rank, world: of this process; by default those of ``torch.distributed``, and without a
                process group those of the launcher.
            size, batch: older names of ``data`` and ``batch_size``.

        Raises:
            UsageError: an argument is missing or out of range.
        """
        size = _length(one_of("data", data, "size", size))
        batch = _whole(one_of("batch_size", batch_size, "batch", batch))
        micro = batch if micro_batch_size is None else _whole(micro_batch_size)
        dropped = drop_last and not replacement and micro > size
        _check(size, batch, micro, dropped=dropped, repeats=replacement and order is None)
        if (rank is None) != (world is None) or (
            rank is not None and world is not None and not 0 <= rank < world
        ):
            raise UsageError(f"rank={rank} of world={world}: give both, with 0 <= rank < world")
        self._size, self._batch, self._seed, self._drop_last = size, batch, seed, drop_last
        self._micro_batch = micro
        self.at_once = 0 if at_once is None else _at_once(at_once)
        if self.at_once and micro_batch_size is not None:
            raise UsageError(
                "at_once and micro_batch_size both say how a step is cut; give one of them"
            )
        self._orders = Orders(size, order, replacement=replacement)
        self._place = None if rank is None or world is None else (rank, world)
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
            f"{type(self).__name__}({self._orders.size}, batch_size={self._batch}, "
            f"seed={self._seed}; epoch {self.epoch}, cursor {self.cursor}, rank {rank} of {world})"
        )

    def enter(self, world: World) -> None:
        """Takes this rank's shares in another world from now on; ``elastic.run`` calls it."""
        self._place = world.rank, world.size

    def __len__(self) -> int:
        """Steps that are left in the epoch; with ``micro_batch_size`` micro-batches."""
        return self._pieces(self._left(self.epoch, self.cursor))

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's shares of the global batches from the cursor to the end of the epoch."""
        given = self._given.get(threading.get_ident())
        if given is not None:
            return iter(given)
        refuse_second_split()
        shares = Shares(self, self.outlook(*self.place))
        shares.begin()
        return shares

    def outlook(self, rank: int, world: int) -> Outlook:
        """What an iteration would begin with now, as this rank of such a world."""
        now = self.epoch, self.cursor, self._seed
        sizes = self._batch, self._micro_batch
        return Outlook(*now, rank, world, *sizes, self.earlier, self.at_once)

    def order_of(self, epoch: int) -> torch.Tensor:
        """The indices of all samples of an epoch."""
        return self._orders.of(self._seed, epoch)

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

    @property
    def is_plain(self) -> bool:
        """Whether it iterates as this class does; a subclass may do otherwise."""
        return type(self).__iter__ is ElasticBatchSampler.__iter__

    @contextmanager
    def giving(self, batches: Iterable[list[int]]) -> Iterator[None]:
        """Within the block, what iterates in this thread gets these batches."""
        self._given[threading.get_ident()] = batches
        try:
            yield
        finally:
            del self._given[threading.get_ident()]

    @property
    def loss_scale(self) -> float:
        """What to multiply this rank's mean loss with, in the step that is under way.

        DDP averages over ranks; with this weight the result is the mean over the global batch,
        also when it does not divide evenly. With ``micro_batch_size``: of its first piece.
        """
        return self.loss_scale_of(0)

    def loss_scale_of(self, piece: int) -> float:
        """What ``loss_scale`` is for one micro-batch of the step that is under way.

        Args:
            piece: which, from 0.
        """
        count, share = self._piece(piece)
        return share * self._share.world / count

    def share_of_step(self, piece: int) -> float:
        """What a micro-batch counts in a step whose gradients are added up, and not averaged.

        Multiplied so, the mean losses of all micro-batches on all ranks make up the mean over the
        global batch, also if the last micro-batch of a step is smaller.

        Args:
            piece: which, from 0.

        Returns:
            This rank's samples of it, times the number of ranks, by the samples of the step.
        """
        _, share = self._piece(piece)
        return share * self._share.world / self._step()

    def samples_in_piece(self, piece: int) -> int:
        """How many samples a micro-batch has on all ranks, in the step that is under way.

        Args:
            piece: which, from 0.
        """
        return self._piece(piece)[0]

    @property
    def pieces_in_step(self) -> int:
        """How many micro-batches the step has that is under way."""
        share = self._share
        if share.at_once:
            return len(pieces_of(self._step(), share.rank, share.world, share.at_once))
        return -(-self._step() // share.micro_batch)

    def _step(self) -> int:
        """Samples in the step that is under way, over all ranks."""
        share = self._share
        step = min(share.batch, self._left(self.epoch, self.cursor))
        return step - step % share.micro_batch if self._drop_last else step

    def _piece(self, piece: int) -> tuple[int, int]:
        """Samples in a micro-batch of the step that is under way: of all ranks, and of this one."""
        here = self._share
        if here.at_once:
            ranks = (
                pieces_of(self._step(), n, here.world, here.at_once) for n in range(here.world)
            )
            sizes = [end - first for first, end in (cuts[piece] for cuts in ranks)]
            return sum(sizes), sizes[here.rank]
        count = min(here.micro_batch, self._step() - here.micro_batch * piece)
        first, end = share_of(count, here.rank, here.world)
        return count, end - first

    @property
    def _share(self) -> Stretch | Outlook:
        """Whose share this rank takes of the step that is under way, and how large that is."""
        return self.outlook(*self.place).at((self.epoch, self.cursor))

    @property
    def batch_sizes(self) -> tuple[int, int]:
        """Samples in a global batch and in a micro-batch, over all ranks.

        Setting takes effect at the next iteration. The last micro-batch of each global batch is
        smaller where these do not divide.
        """
        return self._batch, self._micro_batch

    @batch_sizes.setter
    def batch_sizes(self, sizes: tuple[int, int]) -> None:
        self._batch, self._micro_batch = sizes

    @property
    def epoch_length(self) -> int:
        """How many micro-batches the whole epoch has that the next step belongs to."""
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
        samples = self._left(epoch, 0)
        if self._drop_last:
            samples -= samples % self._micro_batch
        return -(-samples // self._batch)

    @property
    def steps_left(self) -> int:
        """How many steps are left in it."""
        samples = self._left(self.epoch, self.cursor)
        return samples // self._batch if self._drop_last else -(-samples // self._batch)

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
            "order": self._orders.fingerprint(self._seed, self.epoch) if self.cursor else None,
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

    def _pieces(self, samples: int) -> int:
        """How many micro-batches so many samples make."""
        if self._drop_last:
            return samples // self._micro_batch * self.pieces_in(self._micro_batch)
        steps, rest = divmod(samples, self._batch)
        return steps * self.pieces_in(self._batch) + self.pieces_in(rest)

    def pieces_in(self, samples: int) -> int:
        """How many pieces a step of so many samples has in the present world."""
        if self.at_once and samples:
            return len(pieces_of(samples, 0, self.place[1], self.at_once))
        return -(-samples // self._micro_batch)

    def _after(self, epoch: int, cursor: int) -> tuple[int, int]:
        here = (one.batch for one in self.earlier if (epoch, cursor) < one.until)
        return self._normalized(epoch, cursor + next(here, self._batch))

    def _normalized(self, epoch: int, cursor: int) -> tuple[int, int]:
        """This position, or the beginning of the next epoch if no step follows in this one."""
        enough = self._micro_batch if self._drop_last else 1
        over = cursor > 0 and self._left(epoch, cursor) < enough
        return (epoch + 1, 0) if over else (epoch, cursor)


class Shares:
    """The shares of one rank, from the position of its sampler to the end of the epoch.

    It also speaks the protocol of ``torchdata``'s ``StatefulDataLoader``, which keeps the state of
    the iterator as it was when a batch was asked for, however far it has read ahead since.
    """

    called = "the loader's sampler", "sampler"

    def __init__(self, sampler: ElasticBatchSampler, outlook: Outlook) -> None:
        """Starts there. Nothing is loaded by this process before ``begin``.

        Args:
            sampler: whose.
            outlook: where, and whose share.
        """
        self.sampler = sampler
        self.began = outlook.epoch, outlook.cursor
        self.given = 0
        self._outlook = outlook
        self._begun = False
        self._cut: deque[list[int]] = deque()  # the pieces of the present step that are to come
        self._go_to(*self.began)

    def begin(self) -> None:
        """The script iterates over them from now on."""
        self._begun = True
        begin(self._moment)
        missing_parts.begun(self)

    def _go_to(self, epoch: int, cursor: int) -> None:
        sampler = self.sampler
        self._position = epoch, cursor
        self._step = cursor  # where the global batch begins that the next piece belongs to
        self._cut.clear()
        self._moment = Moment(sampler._seed, epoch)
        self._order = sampler._orders.of(*self._moment)
        if sampler._drop_last and len(self._order) < sampler._micro_batch:
            raise UsageError(
                f"epoch {epoch} has {len(self._order)} samples, and drop_last leaves nothing of "
                f"them with a batch of {sampler._micro_batch}; take a smaller batch"
            )

    def __iter__(self) -> Shares:
        return self

    def __next__(self) -> Batch:
        epoch, cursor = self._position
        if epoch != self._moment.epoch:
            raise StopIteration
        share = self._outlook.at(self._position)
        if share.at_once:
            return self._next_piece(share)
        after = min(cursor + share.micro_batch, self._step + share.batch)
        if after == self._step + share.batch:
            self._step = after
        batch = self._order[cursor:after]
        first, end = share_of(len(batch), share.rank, share.world)
        self._position = self.sampler._normalized(epoch, after)
        self.given += 1
        if self._begun:
            begin(self._moment)  # for a loader without processes of its own, which loads it now
        # Without a share a rank must still take part in the step: it takes a sample that
        # another one has as well, and loss_scale is 0.
        return Batch((batch[first:end] if first < end else batch[:1]).tolist(), self._moment)

    def _next_piece(self, share: Stretch | Outlook) -> Batch:
        epoch, cursor = self._position
        if not self._cut:
            batch = self._order[cursor : cursor + share.batch].tolist()
            for first, end in pieces_of(len(batch), share.rank, share.world, share.at_once):
                self._cut.append(batch[first:end] or batch[:1])
        piece = self._cut.popleft()
        if not self._cut:  # only then is the step read: its pieces come again together
            self._position = self.sampler._normalized(epoch, cursor + share.batch)
        self.given += 1
        if self._begun:
            begin(self._moment)
        return Batch(piece, self._moment)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was given last."""
        epoch, cursor = self._position
        return {"epoch": epoch, "cursor": cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the batch that was given last, and so does the sampler."""
        self.sampler.epoch, self.sampler.cursor = state["epoch"], state["cursor"]
        self._go_to(state["epoch"], state["cursor"])


def one_of(name: str, value: T | None, old: str, of_old: T | None) -> T:
    """The value of an argument that has an older name as well.

    Raises:
        UsageError: none of the two is given, or both.
    """
    if value is not None and of_old is not None:
        raise UsageError(f"{old}= is an older name of {name}=; give one of them")
    given = of_old if value is None else value
    if given is None:
        raise UsageError(f"{name} is missing")
    return given


def _check(size: int, batch: int, micro: int, *, dropped: bool, repeats: bool) -> None:
    """Refuses settings of a sampler that cannot be.

    Args:
        size: of the data set, in samples.
        batch, micro: samples in a global batch, and in a piece of it.
        dropped: no sample would be left.
        repeats: replacement is allowed to an order that is not the user's.
    """
    if size < 1 or batch < 1:
        raise UsageError(
            f"a sampler needs a size >= 1 and a batch_size >= 1, not {size} and {batch}"
        )
    if micro < 1 or batch % micro:
        raise UsageError(
            f"batch_size={batch} cannot be cut into pieces of micro_batch_size={micro}; "
            "give a batch_size that is a multiple of it"
        )
    if dropped:
        raise UsageError(
            f"drop_last leaves nothing of {size} samples with a batch of {micro}; "
            "take a smaller batch, or do not drop the last one"
        )
    if repeats:
        raise UsageError("replacement=True is about an order= of your own; give one")


def _length(data: object) -> int:
    """Of a data set, or of what is a length itself."""
    if isinstance(data, IterableDataset):
        raise UsageError(NO_POSITIONS)
    if isinstance(data, Sized):
        try:
            return len(data)
        except TypeError:  # a tensor that is a number
            pass
    return _whole(data)


def _at_once(value: object) -> int:
    if (size := _whole(value)) < 1:
        raise UsageError(f"at_once={size}: a rank holds at least one sample at a time")
    return size


def _whole(value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            "a sampler needs a data set or its length, and how many samples a batch has, not a "
            f"{type(value).__qualname__}"
        ) from None
