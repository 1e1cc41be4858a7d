"""Random numbers that belong to a sample, not to the process that happens to load it.

They are derived from (seed, epoch, index of the sample). The index is known where a sample is
loaded; the seed and the epoch travel with the indices of its batch, since a process of a
``DataLoader`` may be forked, spawned, or left over from an earlier epoch: nothing that it was born
with says what it loads now.
"""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Moment(NamedTuple):
    """What all samples of a batch have in common."""

    seed: int
    epoch: int


_present: Moment | None = None


def begin(moment: Moment) -> None:
    """What this process loads from now on belongs to this moment."""
    global _present
    _present = moment


class Batch(list[int]):
    """The indices of a batch. Where it arrives in another process, its moment begins."""

    def __init__(self, indices: Iterable[int], moment: Moment) -> None:
        """Takes the indices of samples, and what they have in common."""
        super().__init__(indices)
        self.moment = moment

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (list(self), *self.moment)


def _arrived(indices: list[int], seed: int, epoch: int) -> Batch:
    # A process of a DataLoader takes one batch after the other, and loads each before the next.
    batch = Batch(indices, Moment(seed, epoch))
    begin(batch.moment)
    return batch


def generator(*what: int | str) -> torch.Generator:
    """A generator that is the same whenever and wherever it is asked for with the same words."""
    digest = hashlib.blake2b("/".join(map(str, what)).encode(), digest_size=8).digest()
    made = torch.Generator()
    made.manual_seed(int.from_bytes(digest, "little") >> 1)  # it must fit a signed number
    return made


def sample_rng(index: int, *, seed: int | None = None, epoch: int | None = None) -> torch.Generator:
    """The random numbers of one sample in the present epoch, for its augmentation.

    They are the same whatever the number of ranks, and whichever rank and whichever process of a
    ``DataLoader`` loads the sample, also when it is loaded again after a fault. Call it in
    ``__getitem__``, or in a ``collate_fn``::

        def __getitem__(self, index):
            rng = elastic.sample_rng(index)
            noise = torch.randn(3, 32, 32, generator=rng)
            # for other libraries: random.Random(rng.initial_seed()),
            # numpy.random.default_rng(rng.initial_seed())

    Args:
        index: of the sample, or any other whole number that names it.
        seed: of the run; by default that of the sampler.
        epoch: from 0; by default the one that the sampler is in.

    Returns:
        A new generator on the CPU, at its beginning.

    Raises:
        UsageError: seed and epoch are not given, and no batch of a sampler is being loaded.
    """
    if seed is None or epoch is None:
        if _present is None:
            raise UsageError(
                "sample_rng() was called where no sample of an elastic.DataLoader is loaded, "
                "so that the epoch is not known; call it in the __getitem__ of a data set that one "
                "reads, or give it seed= and epoch="
            )
        seed = _present.seed if seed is None else seed
        epoch = _present.epoch if epoch is None else epoch
    try:
        number = operator.index(index)
    except TypeError:
        raise UsageError(f"sample_rng() needs a whole number, not {index!r}") from None
    return generator("sample", seed, epoch, number)
