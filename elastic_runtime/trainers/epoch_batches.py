"""A user's ``DataLoader``, made anew with our sampler, one epoch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_runtime.data.loader import loader
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from elastic_runtime.data.outlook import Outlook
    from elastic_runtime.data.sampler import ElasticBatchSampler

# Of a DataLoader, what its successor has as well.
_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
)

_SHOWN = ("batch_sampler", *_OPTIONS)


class EpochBatches:
    """What a trainer iterates over: one epoch, from the sampler's position to its end.

    It is no ``DataLoader`` on purpose: trainers leave it alone then. Its length is that of the
    whole epoch also in the middle of one, as their loops count from the epoch's beginning.

    Attributes:
        dataset, batch_size: the user's.
        sampler: says which samples come, and remembers how far the job is.
    """

    def __init__(self, given: DataLoader[Any], sampler: ElasticBatchSampler) -> None:
        """Makes the loader, and starts its processes.

        Args:
            given: the user's loader, of which all but the sampling is kept.
            sampler: decides the sampling.
        """
        options = {name: getattr(given, name) for name in _OPTIONS}
        if not options["num_workers"]:
            del options["prefetch_factor"]
        self.dataset, self.batch_size = given.dataset, given.batch_size
        # Lightning looks for an attribute "sampler", to set its epoch.
        self._sampler = sampler
        self._loader = loader(given.dataset, sampler, **options)
        self._began: Outlook | None = None

    def __getattr__(self, name: str) -> Any:
        # For callbacks that look at the loader; a trainer would exchange the sampler.
        if name in _SHOWN:
            return getattr(self._loader, name)
        raise AttributeError(f"the training data of an elastic job have no {name!r}")

    def __len__(self) -> int:
        """Batches in the whole epoch."""
        return self._sampler.epoch_length

    def __iter__(self) -> Iterator[Any]:
        """Begins at the sampler's position, and to read ahead."""
        self._began = self._sampler.outlook(*self._sampler.place)
        return self._noticed(iter(self._loader), self._began, len(self._sampler))

    @property
    def is_ready(self) -> bool:
        """Whether the newest iteration has given nothing yet, and begins where the sampler is."""
        return self._began == self._sampler.outlook(*self._sampler.place)

    def enter(self) -> None:
        """Another world begins: no earlier iteration is of any use."""
        self._began = None

    def _noticed(self, batches: Iterator[Any], began: Outlook, length: int) -> Iterator[Any]:
        given = 0
        for batch in batches:
            if self._began is began:
                self._began = None
            given += 1
            yield batch
        if given < length:  # it would look like trained
            raise UsageError(
                f"the training data ended after {given} of the {length} batches that were left of "
                "an epoch; their length must not change while they are used"
            )
