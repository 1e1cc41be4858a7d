"""Reads streams of data step by step, here or in processes of a loader, each with its position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from torch.utils.data import IterableDataset, get_worker_info

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_END: Any = object()


class StreamStep(NamedTuple):
    """What one stream gives for one step.

    Attributes:
        stream: its number.
        rows: its sequences, as its data set gives them; fewer than asked for at its end.
        position: where it is after them, see ``packed``.
    """

    stream: int
    rows: list[Any]
    position: bytes


class StepReader(IterableDataset[list[StreamStep]]):  # type: ignore[misc]
    """Gives one step after the other, without an end.

    In a loader with processes each of them reads some of the streams, and gives these: as many
    items as there are processes make a step.
    """

    def __init__(self, streams: Mapping[int, Any], per_stream: int) -> None:
        """Remembers what to read; nothing is read yet.

        Args:
            streams: data sets by the number of the stream: iterable, with ``state_dict``. They are
                where the reading begins.
            per_stream: sequences that a step takes from each.
        """
        self._streams = dict(streams)
        self._per_stream = per_stream

    def __iter__(self) -> Iterator[list[StreamStep]]:
        worker = get_worker_info()
        first, apart = (worker.id, worker.num_workers) if worker else (0, 1)
        own = list(self._streams.items())[first::apart]
        reading = [(number, data, iter(data)) for number, data in own]
        while True:
            yield [self._step(*one) for one in reading]

    def _step(self, number: int, data: Any, rows: Iterator[Any]) -> StreamStep:
        found: list[Any] = []
        while len(found) < self._per_stream and (row := next(rows, _END)) is not _END:
            found.append(row)
        return StreamStep(number, found, packed(data.state_dict()))


def packed(position: object) -> bytes:
    """A position as it is now: data sets go on changing what they have given.

    Args:
        position: of plain values.

    Raises:
        UsageError: there is something else in it.
    """
    try:
        return msgspec.msgpack.encode(position)
    except TypeError as error:
        raise UsageError(
            f"the position of the data set cannot be saved, as it holds more than plain values: "
            f"{error}; its state_dict() should give numbers, strings, lists and dicts"
        ) from None


def unpacked(position: bytes) -> Any:
    """The position again, as plain values."""
    return msgspec.msgpack.decode(position, strict=False)
