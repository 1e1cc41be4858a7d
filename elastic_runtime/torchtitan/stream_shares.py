"""Which sequences of a step belong to which rank (pure).

The data set is cut into a fixed number of *streams*, as torchtitan would cut it for so many ranks.
Each step takes as many sequences from each stream, whatever the world: the ranks share the streams
out. So a global batch has the same sequences in every world, and the position of each stream can be
taken over by another rank.

FSDP needs the same number of micro-batches on all ranks, and compiled models the same shape: ranks
with smaller shares fill up with sequences that do not count, of which every label is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.data.sampler import share_of
from elastic_runtime.errors import CheckpointUsageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class StreamShares:
    """How one rank takes part in each step.

    Attributes:
        global_batch: sequences in a step, over all ranks.
        streams: how many there are; they divide the global batch.
        ranks: how many share them out: the data-parallel ones.
        rank: which of these.
        local_batch: sequences in a micro-batch of a rank.
    """

    global_batch: int
    streams: int
    ranks: int
    rank: int
    local_batch: int

    def __post_init__(self) -> None:
        """Refuses what cannot be shared out.

        Raises:
            UsageError: the streams do not divide the global batch.
        """
        if self.streams < 1 or self.global_batch % self.streams:
            raise UsageError(
                f"a global batch of {self.global_batch} sequences cannot be taken from "
                f"{self.streams} streams in equal parts; give --dataloader.streams a divisor of "
                "--training.global_batch_size, or leave it out"
            )

    @property
    def per_stream(self) -> int:
        """Sequences that a step takes from each stream."""
        return self.global_batch // self.streams

    @property
    def own(self) -> range:
        """The streams that this rank reads; it may have none in a large world."""
        return range(*share_of(self.streams, self.rank, self.ranks))

    @property
    def rows(self) -> int:
        """Sequences that each rank goes through in a step, those that do not count included."""
        largest = -(-self.streams // self.ranks) * self.per_stream
        return -(-largest // self.local_batch) * self.local_batch

    @property
    def micro_batches(self) -> int:
        """How many of them a step has, on each rank."""
        return self.rows // self.local_batch

    def __str__(self) -> str:
        """For people: what each rank gets."""
        counts = [len(self.of(rank).own) * self.per_stream for rank in range(self.ranks)]
        shares = f"{counts[0]}" if len(set(counts)) == 1 else f"{counts[0]} to {counts[-1]}"
        filled = self.rows * self.ranks - self.global_batch
        # torchtitan's own line about its start counts these as well.
        idle = f", {filled} filled up" if filled else ""
        ranks = "1 data-parallel rank" if self.ranks == 1 else f"{self.ranks} data-parallel ranks"
        return (
            f"{self.global_batch} sequences a step on {ranks}: {shares} "
            f"each, in {self.micro_batches} x {self.local_batch}{idle}"
        )

    def of(self, rank: int) -> StreamShares:
        """The same of another rank."""
        return StreamShares(self.global_batch, self.streams, self.ranks, rank, self.local_batch)


def saved_streams(names: Collection[str]) -> int:
    """How many streams a checkpoint has the positions of.

    Args:
        names: of its pieces: the numbers of the streams.

    Raises:
        CheckpointUsageError: they are not all the numbers from 0 on.
    """
    if set(names) != {str(number) for number in range(len(names))}:
        raise CheckpointUsageError(
            f"of the streams of data the checkpoint has {', '.join(sorted(names))[:80]} only; "
            "it is not one of this loader's"
        )
    return len(names)
