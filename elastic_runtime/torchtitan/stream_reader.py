"""Reads streams of data step by step, here or in processes of a loader, each with its position."""

from __future__ import annotations

import marshal
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

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


class StepReader(IterableDataset["list[StreamStep] | bytes"]):  # type: ignore[misc]
    """Gives one step after the other, without an end.

    In a loader with processes each of them reads some of the streams, and gives these: as many
    items as there are processes make a step. They are given as bytes (``steps_of``): torch would
    hand over each tensor by a file descriptor of its own, and many sequences are too many.
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

    def __iter__(self) -> Iterator[list[StreamStep] | bytes]:
        worker = get_worker_info()
        first, apart = (worker.id, worker.num_workers) if worker else (0, 1)
        own = list(self._streams.items())[first::apart]
        reading = [(number, data, iter(data)) for number, data in own]
        while True:
            steps = [self._step(*one) for one in reading]
            yield pickle.dumps(steps) if worker else steps

    def _step(self, number: int, data: Any, rows: Iterator[Any]) -> StreamStep:
        found: list[Any] = []
        while len(found) < self._per_stream and (row := next(rows, _END)) is not _END:
            found.append(row)
        return StreamStep(number, found, packed(data.state_dict()))


def steps_of(given: list[StreamStep] | bytes) -> list[StreamStep]:
    """What a reader has given, be it in another process of this program.

    Args:
        given: by a ``StepReader``.
    """
    return pickle.loads(given) if isinstance(given, bytes) else given


def packed(position: Any) -> bytes:
    """A position as it is now: data sets go on changing what they have given.

    Args:
        position: of plain values.

    Raises:
        UsageError: there is something else in it.
    """
    try:
        # A twentieth of a copy's time; tuples and numbers of any size stay as they are.
        return marshal.dumps(position)
    except ValueError:
        raise UsageError(
            "the position of the data set cannot be saved, as it holds more than plain values; "
            f"its state_dict() should give numbers, strings, lists and dicts, not {position!r:.200}"
        ) from None


def unpacked(position: bytes) -> Any:
    """The position again, as plain values.

    Args:
        position: that this program has packed.
    """
    return marshal.loads(position)
