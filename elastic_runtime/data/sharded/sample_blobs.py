"""Samples that were read and are not used yet, in the processes of a loader.

If there are several, any of them may take what one has read. Such samples lie in a memory file that
has no name in any folder: nothing is left of it when its process has ended, however that was. Other
processes find it under ``/proc`` while its owner keeps it. So samples need not pass through the
process that trains, which only knows where each one is.
"""

from __future__ import annotations

import copy
import errno
import io
import itertools
import mmap
import os
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD = 8  # bytes of a number
# Linux takes so many pieces at once.
_PIECES = 1024
# What nobody can change.
_CONSTANT = frozenset((bytes, str, int, float, bool, type(None)))


class BlobGone(Exception):
    """Its owner does not keep it any more: nobody waits for what was to be made of it."""


class BlobName(NamedTuple):
    """By which processes of the same program know a blob.

    Attributes:
        process: its owner.
        file: the descriptor that it has there.
        serial: no other blob of that process has it.
        age: which lot it belongs to, as (epoch, number).
    """

    process: int
    file: int
    serial: int
    age: tuple[int, int]


class BlobOwner:
    """The blobs of this process."""

    def __init__(self) -> None:
        """Has none yet."""
        self._serials = itertools.count(1)
        self._held: list[BlobName] = []

    def keep(self, samples: Sequence[Any], age: tuple[int, int]) -> BlobName:
        """Makes a blob of samples.

        Args:
            samples: anything that can be pickled.
            age: of the blob.
        """
        pieces = [packed(sample) for sample in samples]
        serial = next(self._serials)
        # The serial, how many there are, and where each one ends.
        ends = itertools.accumulate(map(len, pieces), initial=_WORD * (len(pieces) + 3))
        head = b"".join(n.to_bytes(_WORD, "little") for n in (serial, len(pieces), *ends))
        file = os.memfd_create("elastic-samples", os.MFD_CLOEXEC)
        try:
            _write(file, [head, *pieces])
        except BaseException:
            os.close(file)
            raise
        name = BlobName(os.getpid(), file, serial, age)
        self._held.append(name)
        return name

    def drop_before(self, age: tuple[int, int]) -> None:
        """Frees the blobs of earlier lots.

        Args:
            age: of the first that is still needed.
        """
        for name in [name for name in self._held if name.age < age]:
            os.close(name.file)
            self._held.remove(name)


def _write(file: int, pieces: list[bytes]) -> None:
    todo = list(pieces)
    while todo:
        written = os.writev(file, todo[:_PIECES])
        done = 0
        for piece in todo[:_PIECES]:
            if written < len(piece):
                break
            written -= len(piece)
            done += 1
        del todo[:done]
        if todo and written:
            todo[0] = todo[0][written:]


class BlobReader:
    """Takes samples out of blobs, of whatever process."""

    def __init__(self) -> None:
        """Knows none yet."""
        self._open: dict[BlobName, tuple[mmap.mmap, memoryview]] = {}

    def sample(self, name: BlobName, number: int) -> Any:
        """One sample.

        Args:
            name: of the blob.
            number: of the sample in it.

        Raises:
            BlobGone: its owner has dropped it.
        """
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = self._opened(name)
        content, ends = found
        with memoryview(content) as whole:
            return pickle.loads(whole[ends[number] : ends[number + 1]])

    def drop_before(self, age: tuple[int, int]) -> None:
        """Frees the blobs of earlier lots.

        Args:
            age: of the first that is still needed.
        """
        for name in [name for name in self._open if name.age < age]:
            content, ends = self._open.pop(name)
            ends.release()
            content.close()

    def _opened(self, name: BlobName) -> tuple[mmap.mmap, memoryview]:
        # What is there may be anything, by now.
        try:
            path = f"/proc/{name.process}/fd/{name.file}"
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                content = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            raise BlobGone from None
        words = memoryview(content)[: len(content) - len(content) % _WORD].cast("Q")
        if not words or words[0] != name.serial:
            words.release()
            content.close()
            raise BlobGone
        return content, words[2 : words[1] + 3]


class _Pickler(pickle.Pickler):
    """Packs of a tensor that is a part of a larger one that part only."""

    def reducer_override(self, given: Any) -> Any:
        """See ``pickle``; called for what is not of Python's own types."""
        if type(given) is not torch.Tensor or given.requires_grad or given.is_meta:
            return NotImplemented
        if given.layout is not torch.strided:
            return NotImplemented
        if given.untyped_storage().nbytes() <= given.numel() * given.element_size():
            return NotImplemented
        return given.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def packed(sample: Any) -> bytes:
    """A sample as bytes.

    Args:
        sample: anything that can be pickled.
    """
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(sample)
    return file.getvalue()


def _is_flat(sample: Any) -> bool:
    kind = type(sample)
    if kind is dict:
        return _CONSTANT.issuperset(map(type, sample.values()))
    return kind in _CONSTANT


def separate(sample: Any) -> Any:
    """The same for a function that may change it: after a fault the sample may be needed again.

    Args:
        sample: anything; what cannot be copied, such as an open file, is given as it is.
    """
    kind = type(sample)
    if kind in _CONSTANT:
        return sample
    if kind is torch.Tensor and not sample.requires_grad:
        return sample.clone()
    if kind is dict:
        return dict(sample) if _is_flat(sample) else {k: separate(v) for k, v in sample.items()}
    if kind is list or kind is tuple:
        flat = _CONSTANT.issuperset(map(type, sample))
        return kind(sample) if flat else kind(map(separate, sample))
    for copied in (_repacked, copy.deepcopy):
        try:
            return copied(sample)
        except MemoryError:
            raise
        except Exception:  # whatever it is that refuses: perhaps the other way is open
            continue
    return sample


def _repacked(sample: Any) -> Any:
    return pickle.loads(packed(sample))


class LoneSamples:
    """Those of a loader with one process, which nobody else needs.

    Bytes and numbers are kept as they are. The rest is packed all the same: a list of numbers takes
    ten times as much memory, and what refers to a file keeps that open.
    """

    def __init__(self) -> None:
        """Has none yet."""
        self._serials = itertools.count(1)
        self._held: dict[BlobName, list[tuple[Any, bool]]] = {}

    def keep(self, samples: Sequence[Any], age: tuple[int, int]) -> BlobName:
        """Holds samples; as ``BlobOwner.keep``, but for the descriptor.

        Args:
            samples: anything.
            age: which lot they belong to.
        """
        name = BlobName(os.getpid(), -1, next(self._serials), age)
        self._held[name] = [_kept(sample) for sample in samples]
        return name

    def sample(self, name: BlobName, number: int) -> Any:
        """One sample, that may be changed.

        Args:
            name: of those with which it was kept.
            number: of the sample among them.

        Raises:
            BlobGone: they are not kept any more, or by a process that has ended.
        """
        try:
            sample, is_packed = self._held[name][number]
        except KeyError:
            raise BlobGone from None
        return pickle.loads(sample) if is_packed else separate(sample)

    def drop_before(self, age: tuple[int, int]) -> None:
        """Forgets the samples of earlier lots.

        Args:
            age: of the first that is still needed.
        """
        for name in [name for name in self._held if name.age < age]:
            del self._held[name]


def _kept(sample: Any) -> tuple[Any, bool]:
    """How a lone process keeps a sample, and whether that is packed."""
    if _is_flat(sample):
        return sample, False
    try:
        return packed(sample), True
    except MemoryError:
        raise
    except Exception:  # whatever it is that refuses
        return sample, False


class SharedSamples:
    """Those of a loader with several processes, as one of them has them."""

    def __init__(self) -> None:
        """Has none yet."""
        self._owner, self._reader = BlobOwner(), BlobReader()
        self.keep, self.sample = self._owner.keep, self._reader.sample

    def drop_before(self, age: tuple[int, int]) -> None:
        """Forgets the samples of earlier lots.

        Args:
            age: of the first that is still needed.
        """
        self._owner.drop_before(age)
        self._reader.drop_before(age)
