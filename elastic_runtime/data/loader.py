"""A ``DataLoader`` for training in place: its processes outlive a change of the world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from torch.utils.data import DataLoader, IterableDataset

from elastic_runtime.data.kept_loader import KeptLoader
from elastic_runtime.data.sampler import NO_POSITIONS, ElasticBatchSampler, one_of
from elastic_runtime.data.sharded.sharded_stream import ShardedStream
from elastic_runtime.data.sigterm_shield import Shielded, end_with_program
from elastic_runtime.data.stream import StreamLoader
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.utils.data import Dataset

_OURS = ("shuffle", "sampler", "batch_sampler", "drop_last", "persistent_workers")


@overload
def loader(dataset: Dataset[Any], sampler: ElasticBatchSampler, **options: Any) -> DataLoader[Any]:
    pass


@overload
def loader(
    dataset: Iterable[Any],
    *,
    at_least_once: Literal[True],
    batch_size: int,
    seed: int = 0,
    **options: Any,
) -> StreamLoader:
    pass


@overload
def loader(
    dataset: Iterable[Any],
    *,
    at_least_once: Literal[True],
    batch: int,
    seed: int = 0,
    **options: Any,
) -> StreamLoader:
    pass


def loader(
    dataset: Any,
    sampler: ElasticBatchSampler | None = None,
    *,
    at_least_once: bool = False,
    batch_size: int | None = None,
    seed: int = 0,
    batch: int | None = None,
    **options: Any,
) -> DataLoader[Any] | StreamLoader:
    """A loader whose batches are this rank's shares of the global batches.

    Make it once, outside of ``train``: each new iteration begins at the sampler's cursor, which is
    that of the last commit, and what was read ahead for a world that is gone is dropped. Its
    processes are kept, so that a change of the world does not start them again; between two worlds
    they drop what they were reading, and begin to read for the next one while the ranks connect, so
    that an ``order=`` may be asked in another thread. An iterator that was made before
    ``elastic.run`` is good until the first change.

    Args:
        dataset: a map-style data set; an iterable one only with ``at_least_once``.
        sampler: says which samples come next; it belongs into the ``State``.
        at_least_once: the data set is iterable, and it is accepted that samples may count more
            than once. There is no sampler then: the loader itself has the position (``epoch``,
            ``cursor``) and ``loss_scale``, and belongs into the ``State`` and the ``Checkpointer``.
        batch_size: with ``at_least_once``: samples in a global batch, over all ranks.
        seed: with ``at_least_once``: of ``sample_rng``.
        batch: an older name of ``batch_size``.
        **options: of ``DataLoader``, such as ``num_workers``.

    Raises:
        UsageError: an option is the sampler's business, or the data set is of the other kind.
    """
    if isinstance(dataset, ShardedStream):
        raise UsageError("a ShardedStream is itself the loader: iterate over it")
    _check_options(options)
    if at_least_once:
        _check_stream(dataset, sampler, batch_size or batch or 0)
        size = one_of("batch_size", batch_size, "batch", batch)
        return StreamLoader(dataset, size, seed, options)
    if _is_iterable(dataset):
        raise UsageError(NO_POSITIONS)
    if not isinstance(sampler, ElasticBatchSampler):
        raise UsageError(
            "loader() needs an ElasticBatchSampler as its second argument, "
            f"not a {type(sampler).__qualname__}; for an evaluation take torch's DataLoader"
        )
    if batch_size or batch or seed:
        raise UsageError("batch_size and seed are the sampler's; give them to ElasticBatchSampler")
    if options.get("num_workers", 0) < 1:
        return DataLoader(dataset, batch_sampler=sampler, **options)
    options["worker_init_fn"] = Shielded(options.get("worker_init_fn"))
    made = KeptLoader(dataset, batch_sampler=sampler, persistent_workers=True, **options)
    end_with_program(made)
    made.keep(sampler)
    return made


def _check_stream(dataset: object, sampler: object, batch_size: int) -> None:
    if not _is_iterable(dataset):
        raise UsageError(
            "at_least_once=True is for iterable data; this data set has numbered samples, each "
            "of which can count exactly once: give loader() an ElasticBatchSampler instead"
        )
    if sampler is not None or batch_size < 1:
        raise UsageError(
            "an iterable data set is read without a sampler, in global batches of batch_size= "
            "samples: elastic.loader(dataset, batch_size=64, at_least_once=True)"
        )


def _check_options(options: dict[str, Any]) -> None:
    if taken := sorted(set(options) & set(_OURS)):
        raise UsageError(f"loader() leaves {', '.join(taken)} to the sampler; remove the option")
    if not options.get("in_order", True):
        raise UsageError(
            "in_order=False would give batches in another order than they are committed in; "
            "remove the option"
        )


def _is_iterable(dataset: object) -> bool:
    # Some libraries have iterable data sets that are not torch's.
    known = isinstance(dataset, IterableDataset)
    return known or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"))
