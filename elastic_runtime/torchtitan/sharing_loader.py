"""A loader of torchtitan's whose data are shared out anew in each world.

Its data set is the user's, cut into a fixed number of streams (``stream_shares``). Each rank reads
some of them and remembers their positions, as they were at the last commit: the checkpoint has them
by stream, so that other ranks can go on from there.
"""

# No ``from __future__ import annotations``: what reads the command line looks at the types.
import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sized
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, default_collate
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.tools import utils

from elastic_runtime.data.sampler import share_of
from elastic_runtime.data.sigterm_shield import Shielded, end_with_program
from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.parts.pieces import InPieces
from elastic_runtime.torchtitan.stream_reader import (
    StepReader,
    StreamStep,
    packed,
    steps_of,
    unpacked,
)
from elastic_runtime.torchtitan.stream_shares import StreamShares, saved_streams

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class ElasticDataLoader(BaseDataLoader, InPieces):  # type: ignore[misc]  # torchtitan: no types
    """What loaders made by ``elastic_dataloader`` have in common.

    Attributes:
        of: torchtitan's loader, or the user's, whose data set is read.
        saves: whether this rank saves the positions; False on all but one of those that read the
            same data, as under tensor parallelism.
        is_saved: steps are committed, and positions after them asked for.
    """

    of: ClassVar[type[Any]]

    def __init__(
        self,
        config: Any,
        *,
        dp_world_size: int,
        dp_rank: int,
        local_batch_size: int,
        snapshots_n_steps: int | None = None,
        **runtime: Any,
    ) -> None:
        """Begins with the first sequence of each stream; reads nothing yet.

        Args:
            config: of the loader whose data set is read, and ``streams``.
            dp_world_size, dp_rank: the data-parallel ranks.
            local_batch_size: sequences in what it gives at once.
            snapshots_n_steps: of torchtitan's; each position is known here.
            **runtime: for the loader whose data set is read, such as its tokenizer.
        """
        self._config, self._runtime = config, runtime
        self._place = dp_rank, dp_world_size
        self._at_once = local_batch_size
        self._shares: StreamShares | None = None
        self._saved_streams = 0
        self._example: Any = None
        self._collate: Callable[[list[Any]], Any] = default_collate
        self.saves = self.is_saved = True
        # By the number of the stream: after the last commit, and after each step taken since.
        self._positions: dict[int, bytes] = {}
        self._taken: deque[dict[int, bytes]] = deque()

    def plan(self, global_batch: int, local_batch: int) -> StreamShares:
        """Decides what this rank reads in each step.

        Args:
            global_batch: sequences in a step, over all ranks.
            local_batch: sequences in a micro-batch of a rank.

        Raises:
            UsageError: the streams do not divide the global batch.
        """
        streams = self._config.streams or self._saved_streams or global_batch
        rank, ranks = self._place
        if self._saved_streams and global_batch % self._saved_streams:
            raise CheckpointUsageError(
                f"the checkpoint has the positions of {self._saved_streams} streams of data, and a "
                f"global batch of {global_batch} sequences cannot be taken from them in equal "
                f"parts; give a --training.global_batch_size that is a multiple of "
                f"{self._saved_streams}"
            )
        self._shares = StreamShares(global_batch, streams, ranks, rank, local_batch)
        return self._shares

    def __iter__(self) -> Iterator[Batch]:
        """The micro-batches of this rank, step by step, from the last commit on."""
        shares = self._planned()
        self._taken.clear()
        streams = {number: self._stream(number) for number in shares.own}
        self._positions = {n: packed(data.state_dict()) for n, data in streams.items()}
        finite = not _is_endless(self._config)
        for step in self._steps(streams, shares.per_stream):
            rows = [row for one in step for row in one.rows]
            if finite and _over_all_ranks(len(rows)) == 0:
                return
            if self.is_saved:
                self._taken.append({one.stream: one.position for one in step})
            self._example = rows[-1] if rows else self._example
            rows += [self._filler() for _ in range(shares.rows - len(rows))]
            for first in range(0, len(rows), self._at_once):
                yield self._batch(rows[first : first + self._at_once])

    def commit(self) -> None:
        """The oldest step that was taken and not committed is complete."""
        if self._taken:
            self._positions |= self._taken.popleft()

    # As a part of a ``State``

    def own_pieces(self) -> dict[str, Any]:
        """The positions of the streams that this rank reads, by number."""
        if not self.saves:
            return {}
        return {str(number): unpacked(one) for number, one in self._positions.items()}

    def needed_pieces(self, saved: Collection[str]) -> Collection[str]:
        """The streams that this rank reads, of those that a checkpoint has.

        Raises:
            CheckpointUsageError: it has another number than ``streams`` asks for.
        """
        self._saved_streams = saved_streams(saved)
        if self._config.streams not in (None, self._saved_streams):
            raise CheckpointUsageError(
                f"the checkpoint has the positions of {self._saved_streams} streams of data, and "
                f"--dataloader.streams asks for {self._config.streams}; leave it out"
            )
        return [str(number) for number in range(*share_of(self._saved_streams, *self._place))]

    def take_pieces(self, pieces: Mapping[str, Any]) -> None:
        """Goes on from these positions at the next iteration."""
        self._positions = {int(name): packed(value) for name, value in pieces.items()}

    def state_dict(self) -> dict[str, Any]:
        """What torchtitan's own checkpoint manager would save.

        Raises:
            UsageError: always; it keeps one position for each rank.
        """
        raise UsageError(_NEEDS_OUR_MANAGER)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What torchtitan's own checkpoint manager would load.

        Raises:
            UsageError: always.
        """
        raise UsageError(_NEEDS_OUR_MANAGER)

    # Reading

    def _planned(self) -> StreamShares:
        if self._shares is None:
            raise UsageError(
                "a loader that shares out its data anew needs ElasticTrainer, which says how "
                "many sequences a step has; make both with elastic_runtime.torchtitan.elastic"
            )
        return self._shares

    def _stream(self, number: int, *, again: bool = False) -> Any:
        """The data set of a stream, where it was left; or from its beginning again."""
        streams = self._planned().streams
        try:
            loader = self.of(
                config=self._config,
                dp_world_size=streams,
                dp_rank=number,
                local_batch_size=1,
                **self._runtime,
            )
        except IndexError as error:  # what datasets raises where there is no sample for a rank
            raise _too_few(self.of, streams) from error
        data = loader.dataset
        self._collate = loader.collate_fn or default_collate
        _check(data, self.of, streams)
        if not again and (position := self._positions.get(number)) is not None:
            data.load_state_dict(unpacked(position))
        return data

    def _steps(self, streams: Mapping[int, Any], per_stream: int) -> Iterator[list[StreamStep]]:
        reader = StepReader(streams, per_stream)
        processes = min(getattr(self._config, "num_workers", 0), len(streams))
        if processes == 0:
            yield from map(steps_of, reader)
            return
        loader = DataLoader(
            reader,
            batch_size=None,
            num_workers=processes,
            prefetch_factor=self._config.prefetch_factor,
            worker_init_fn=Shielded(None),
        )
        end_with_program(loader)
        parts = iter(loader)  # each process in turn
        while True:
            step = [one for _ in range(processes) for one in steps_of(next(parts))]
            # In the order of the streams, however many processes there are.
            yield sorted(step, key=lambda one: one.stream)

    def _filler(self) -> Any:
        """A sequence that does not count: all its labels are ignored."""
        if self._example is None:
            # This rank has no stream in so large a world, or all of its own are over.
            self._example = next(iter(self._stream(0, again=True)), None)
            if self._example is None:
                raise _too_few(self.of, self._planned().streams)
        inputs, labels = self._example
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
            raise UsageError(
                f"{self._planned()}: only token ids can be filled up with labels that do not "
                "count; choose a --training.global_batch_size that divides evenly in each world"
            )
        return inputs, torch.full_like(labels, IGNORE_INDEX)

    def _batch(self, rows: list[Any]) -> Batch:
        inputs, labels = self._collate(rows)
        if getattr(self._config, "pin_memory", False):
            inputs = {k: v.pin_memory() if torch.is_tensor(v) else v for k, v in inputs.items()}
            labels = labels.pin_memory()
        return inputs, labels


_NEEDS_OUR_MANAGER = (
    "this loader's positions are saved by ElasticCheckpointManager only; make the job's config "
    "with elastic_runtime.torchtitan.elastic, or name ElasticCheckpointManager.Config in it"
)

_made: dict[type[Any], type[ElasticDataLoader]] = {}


def elastic_dataloader(config: Any) -> Any:
    """The config of a loader that reads the same data, and shares them out anew in each world.

    Args:
        config: of ``HuggingFaceTextDataLoader``, ``ChatDataLoader``, or any other whose class is
            made with ``dp_rank`` and ``dp_world_size``, and has an iterable ``dataset`` with
            ``state_dict`` and ``load_state_dict``.

    Returns:
        One with the same fields, and ``streams``.

    Raises:
        UsageError: it is not the config of such a loader.
    """
    of = config._owner
    if issubclass(of, ElasticDataLoader):
        return config
    if not issubclass(of, DataLoader):
        raise UsageError(
            f"{of.__name__} has no data set that can be cut into streams; subclass torchtitan's "
            "ParallelAwareDataloader, see docs/torchtitan.md"
        )
    if of not in _made:
        _made[of] = _loader_class(of)
    fields = (field.name for field in dataclasses.fields(config) if field.init)
    values = {name: getattr(config, name) for name in fields}
    return _made[of].Config(**values)


def _loader_class(of: type[Any]) -> type[ElasticDataLoader]:
    """Made for each class, so that a command line has the options of its config."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(of.Config):  # type: ignore[name-defined,misc]
        streams: int | None = None
        """How many streams the data set is cut into, which the ranks share; a divisor of
        --training.global_batch_size, and at least as many as there are data-parallel ranks. Left
        out: as many as the global batch has sequences, or as a checkpoint has."""

    name = f"Elastic{of.__name__}"
    return type(name, (ElasticDataLoader,), {"of": of, "Config": Config, "__module__": __name__})


def _check(data: Any, of: type[Any], streams: int) -> None:
    """Refuses a data set without positions, and one that gives nothing."""
    if not (hasattr(data, "state_dict") and hasattr(data, "load_state_dict")):
        raise UsageError(
            f"the data set of {of.__name__} has no state_dict and load_state_dict, so that nobody "
            "could go on from its position"
        )
    samples = getattr(data, "_data", None)
    if isinstance(samples, Sized) and len(samples) == 0:
        raise _too_few(of, streams)


def _too_few(of: type[Any], streams: int) -> UsageError:
    return UsageError(
        f"the data set of {of.__name__} has too few samples for {streams} streams; set "
        "--dataloader.streams to a smaller divisor of --training.global_batch_size"
    )


def _is_endless(config: Any) -> bool:
    """Whether the data are known to begin again at their end."""
    return getattr(config, "infinite", False) is True


def _over_all_ranks(count: int) -> int:
    total = torch.tensor(count, device=utils.device_type)
    dist.all_reduce(total)
    return int(total)
