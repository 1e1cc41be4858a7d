"""What users say about their shards: which there are, and how one is read."""

from __future__ import annotations

import glob
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from elastic_runtime.data.sharded.shard_readers import check_format, format_of
from elastic_runtime.data.sharded.window_reader import name_of
from elastic_runtime.errors import UsageError

_OURS = ("batch_sampler", "drop_last", "persistent_workers", "sampler", "shuffle")


@dataclass(frozen=True, slots=True)
class ShardList:
    """The shards of an epoch.

    Attributes:
        shards: what ``read`` is called with.
        read: a format, or gives the samples of a shard.
        decode: makes a sample of what was read; None: it is one.
        names: what is remembered of the shards, to know whether they are still the same.
    """

    shards: Sequence[Any]
    read: str | Callable[[Any], Iterable[Any]]
    decode: Callable[[Any], Any] | None
    names: str

    @classmethod
    def of(
        cls,
        shards: Any,
        read: str | Callable[[Any], Iterable[Any]] | None,
        decode: Callable[[Any], Any] | None,
    ) -> ShardList:
        """Looks at what the user has given.

        Args:
            shards: paths or URLs; a pattern of paths; whatever ``read`` understands; or an
                ``IterableDataset`` of Hugging Face.
            read: a format, a function, or None: the names of the shards tell.
            decode: see above; None: as the format has it.

        Raises:
            UsageError: there are no shards, or nothing tells how they are read.
        """
        if _is_of_hugging_face(shards):
            if read is not None:
                raise UsageError(
                    "an IterableDataset knows how its shards are read; leave out read="
                )
            if getattr(shards, "_distributed", None):
                raise UsageError(
                    "this IterableDataset is split over ranks (split_dataset_by_node); give the "
                    "whole one, which the stream divides itself"
                )
            if _shuffles(getattr(shards, "_ex_iterable", None)):
                raise UsageError(
                    "this IterableDataset has a shuffle buffer, whose samples are lost wherever "
                    "it goes on from a position; leave out .shuffle(), and give shuffle_buffer="
                )
            number = int(shards.num_shards)
            return cls(range(number), _ShardsOf(shards, number), decode, "")
        listed = _listed(shards)
        if read is None:
            formats = {format_of(shard) for shard in listed}
            if len(formats) > 1:
                raise UsageError(
                    f"the shards are of several formats ({', '.join(sorted(formats))}); give a "
                    "stream to each, or read= with a function that reads any of them"
                )
            (read,) = formats
        check_format(read)
        if decode is None and read == "jsonl":
            decode = json.loads
        return cls(listed, read, decode, json.dumps([name_of(shard) for shard in listed]))

    def name(self, shard: int) -> str:
        """What a shard is called in messages.

        Args:
            shard: its number.
        """
        return name_of(self.shards[shard]) or f"number {shard}"

    @property
    def identity(self) -> str:
        """What must be the same for an epoch to go on: how many, and which."""
        digest = hashlib.blake2b(self.names.encode(), digest_size=8)
        return f"{len(self.shards)}-{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class _ShardsOf:
    """The shards of a data set of Hugging Face, by number."""

    data: Any
    number: int

    def __call__(self, shard: int) -> Any:
        return self.data.shard(num_shards=self.number, index=shard)


def _is_of_hugging_face(shards: object) -> bool:
    return all(hasattr(shards, name) for name in ("num_shards", "shard", "state_dict"))


def _shuffles(source: Any) -> bool:
    if type(source).__name__ == "BufferShuffledExamplesIterable":
        return True
    below = [getattr(source, "ex_iterable", None), *getattr(source, "ex_iterables", ())]
    return any(_shuffles(each) for each in below if each is not None)


def _listed(shards: Any) -> list[Any]:
    if isinstance(shards, os.PathLike):
        return [shards]
    if isinstance(shards, str):
        if "://" in shards and "*" in shards:
            return _of_pattern(shards)
        if "{" in shards and ".." in shards and not os.path.exists(shards):
            raise UsageError(
                f"{shards!r} is taken for the name of one shard, as braces are not expanded; give "
                "a list: [f'data-{n:03}.tar' for n in range(100)]"
            )
        if "://" in shards or not glob.has_magic(shards) or os.path.exists(shards):
            return [shards]
        if not (found := sorted(glob.glob(shards, recursive=True))):
            raise UsageError(f"no file fits the pattern {shards!r}; are the shards here?")
        return list(found)
    if not isinstance(shards, Iterable) or isinstance(shards, bytes | dict | set | frozenset):
        raise UsageError(
            f"shards is a list of paths or URLs, or a pattern of paths, not {shards!r:.80}; it has "
            "the same order on each rank"
        )
    if not (listed := list(shards)):
        raise UsageError("there is no shard in the list of shards")
    return listed


def _of_pattern(url: str) -> list[str]:
    import fsspec  # torch needs it as well, but it takes a while

    try:
        files, pattern = fsspec.core.url_to_fs(url)
        found = sorted(files.glob(pattern))
    except Exception as error:  # of whatever library knows such URLs
        raise UsageError(
            f"the pattern {url!r} cannot be looked up: {type(error).__name__}: {error}; see to it, "
            "or give the list of shards"
        ) from error
    if not found:
        raise UsageError(f"no file fits the pattern {url!r}; are the shards there?")
    return [str(files.unstrip_protocol(path)) for path in found]


def check_options(options: dict[str, Any]) -> None:
    """Refuses options of ``DataLoader`` that have no meaning for a stream.

    Args:
        options: what the user has given.

    Raises:
        UsageError: one of them is among these.
    """
    if taken := sorted(set(options) & set(_OURS)):
        instead = "; shuffle_buffer= shuffles" if "shuffle" in taken else ""
        raise UsageError(
            f"ShardedStream decides on {', '.join(taken)} itself; remove the option{instead}"
        )
    known = {*inspect.signature(DataLoader).parameters} - {"dataset", "batch_size"}
    if unknown := sorted(set(options) - known):
        raise UsageError(
            f"ShardedStream has no option {', '.join(unknown)}; its own are "
            "global_batch_size, at_once, read, decode, collate_fn, shuffle_buffer, seed and "
            "streams, others are those of DataLoader"
        )
    if not options.get("in_order", True):
        raise UsageError(
            "in_order=False would give batches in another order than they are committed in; "
            "remove the option"
        )
