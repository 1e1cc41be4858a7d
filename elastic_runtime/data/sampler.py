"""Which samples come next, in an order that does not know how many ranks there are.

One permutation of the data set for each epoch, and a cursor in samples: each step takes the next
global batch from it and splits it over the ranks. The cursor moves when a step is committed, not
when a loader reads ahead, and it is saved with the model: so each sample counts once an epoch,
whatever happened, and the sequence of global batches is that of a run with one rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.worker.world import World

# The multiplier of splitmix64: neighbouring seeds and epochs must not share a permutation.
_GOLDEN = 0x9E3779B97F4A7C15


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


class ElasticBatchSampler(Sampler[list[int]]):  # type: ignore[misc]
    """A ``batch_sampler`` for a ``DataLoader`` over a map-style data set.

    Example::

        sampler = ElasticBatchSampler(len(data), batch=64, seed=1)
        loader = DataLoader(data, batch_sampler=sampler)
        while sampler.epoch < epochs:
            for inputs, targets in loader:
                loss = criterion(ddp(inputs), targets) * sampler.loss_scale
                ...
                ckpt.step()     # commits the sampler, which is one of its entries

    Attributes:
        epoch: the epoch that the next step belongs to.
        cursor: how many samples of that epoch are committed.
    """

    def __init__(
        self, size: int, batch: int, *, seed: int = 0, rank: int | None = None, world: int = 0
    ) -> None:
        """Starts at the first sample of epoch 0.

        Args:
            size: of the data set, in samples.
            batch: samples in a global batch; the last one of an epoch may be smaller.
            seed: of all permutations.
            rank, world: of this process; by default those of ``torch.distributed``.

        Raises:
            UsageError: an argument is out of range.
        """
        if size < 1 or batch < 1:
            raise UsageError(f"a sampler needs size >= 1 and batch >= 1, not {size} and {batch}")
        self._size, self._batch, self._seed = size, batch, seed
        if rank is None:
            connected = dist.is_available() and dist.is_initialized()
            rank, world = (dist.get_rank(), dist.get_world_size()) if connected else (0, 1)
        self._rank, self._world = rank, world
        self.epoch = 0
        self.cursor = 0

    def enter(self, world: World) -> None:
        """Takes this rank's shares in another world from now on; ``elastic.run`` calls it."""
        self._rank, self._world = world.rank, world.size

    def __len__(self) -> int:
        """Steps that are left in the epoch."""
        return -(-(self._size - self.cursor) // self._batch)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's shares of the global batches from the cursor to the end of the epoch."""
        order = self._order(self.epoch)
        for start in range(self.cursor, self._size, self._batch):
            batch = order[start : start + self._batch]
            first, end = share_of(len(batch), self._rank, self._world)
            # Without a share a rank must still take part in the step: it takes a sample that
            # another one has as well, and loss_scale is 0.
            yield (batch[first:end] if first < end else batch[:1]).tolist()

    @property
    def loss_scale(self) -> float:
        """What to multiply this rank's mean loss with, in the step that is under way.

        DDP averages over ranks; with this weight the result is the mean over the global batch,
        also when it does not divide evenly.
        """
        count = min(self._batch, self._size - self.cursor)
        first, end = share_of(count, self._rank, self._world)
        return (end - first) * self._world / count

    def commit(self) -> None:
        """Moves the cursor past the global batch of the step that is now complete."""
        self.cursor = min(self.cursor + self._batch, self._size)
        if self.cursor == self._size:
            self.epoch, self.cursor = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The position, the same on every rank and for every number of ranks."""
        return {
            "epoch": self.epoch,
            "cursor": self.cursor,
            "seed": self._seed,
            "size": self._size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved position; the order of samples is that of the run that saved it.

        Raises:
            UsageError: it was saved over a data set of another size.
        """
        if state["size"] != self._size:
            raise UsageError(
                f"the saved position is in a data set of {state['size']} samples, "
                f"this one has {self._size}; give the same data or start anew"
            )
        self.epoch, self.cursor, self._seed = state["epoch"], state["cursor"], state["seed"]

    def _order(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator()
        generator.manual_seed((self._seed * _GOLDEN + epoch) % 2**63)
        return torch.randperm(self._size, generator=generator)
