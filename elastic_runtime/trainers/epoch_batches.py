"""A user's ``DataLoader`` as one of ours, whose pieces a trainer takes one epoch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_runtime.data.data_loader import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader as TorchLoader

    from elastic_runtime.data.steps import TrainingStep

# Of a DataLoader, what its successor has as well.
_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)


class EpochBatches:
    """What a trainer iterates over: one epoch, from the last commit to its end.

    It is no ``DataLoader`` on purpose: trainers leave it alone then. Its length is that of the
    whole epoch also in the middle of one, as their loops count from the epoch's beginning.

    Attributes:
        dataset: the user's.
        batch_size: of the user's loader.
        loader: gives the steps, and remembers how far the job is.
        step: that the newest batch belongs to.
    """

    step: TrainingStep

    def __init__(self, given: TorchLoader[Any] | DataLoader, **sampling: Any) -> None:
        """Makes the loader, and starts its processes.

        Args:
            given: the user's loader, of which all but the sampling is kept; or one of ours.
            **sampling: the other arguments of ours.
        """
        self.dataset, self._given = given.dataset, given
        self._ready: Iterator[Any] | None = None
        if isinstance(given, DataLoader):
            self.loader, self.batch_size = given, given.global_batch_size
        else:
            self.batch_size = given.batch_size
            options = {name: getattr(given, name) for name in _OPTIONS}
            if not options["num_workers"]:
                del options["prefetch_factor"]
            self.loader = DataLoader(given.dataset, **sampling, **options)
        self.loader.tells_pieces = False  # the adapter says it in the words of its trainer

    def __getattr__(self, name: str) -> Any:
        # For callbacks that look at the loader; a trainer would exchange the sampler.
        if name == "batch_sampler":
            return self.loader.batch_sampler
        if name in _OPTIONS:
            return getattr(self._given, name)
        raise AttributeError(f"the training data of an elastic job have no {name!r}")

    def __len__(self) -> int:
        """Batches in the whole epoch."""
        return self.loader.batch_sampler.epoch_length

    def __iter__(self) -> Iterator[Any]:
        """Begins with the first step that is not committed when the first batch is taken."""
        self._ready = batches = self._batches()
        return batches

    @property
    def is_ready(self) -> bool:
        """Whether the newest iteration has given nothing yet."""
        return self._ready is not None

    def enter(self) -> None:
        """Another world begins: no earlier iteration is of any use."""
        self._ready = None

    def _batches(self) -> Iterator[Any]:
        self._ready = None
        for step in self.loader.steps():
            self.step = step
            yield from step
            if step.last_of_epoch:
                return
