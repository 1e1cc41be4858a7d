"""A ``DataLoader`` for training in place: its processes outlive a change of the world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from elastic_runtime.data.sampler import ElasticBatchSampler

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "persistent_workers")


def loader(dataset: Dataset[Any], sampler: ElasticBatchSampler, **options: Any) -> DataLoader[Any]:
    """A loader whose batches are this rank's shares of the sampler's global batches.

    Make it once, outside of ``train``: each new iteration begins at the sampler's cursor, which is
    that of the last commit, and what was read ahead for a world that is gone is dropped. Its
    processes are kept, so that a change of the world does not start them anew.

    Args:
        dataset: a map-style data set.
        sampler: says which samples come next; it belongs into the ``State``.
        **options: of ``DataLoader``, such as ``num_workers``.

    Raises:
        UsageError: an option is the sampler's business.
    """
    if taken := sorted(set(options) & set(_OURS)):
        raise UsageError(f"loader() leaves {', '.join(taken)} to the sampler; remove the option")
    keep = options.get("num_workers", 0) > 0
    made = DataLoader(dataset, batch_sampler=sampler, persistent_workers=keep, **options)
    if keep:
        # Its processes start now, while nobody waits for this rank; the batches that they read
        # meanwhile are dropped by the first iteration.
        iter(made)
    return made
