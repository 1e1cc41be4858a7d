"""Ranks tell each other what their windows have given, once a lot."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from elastic_runtime.data.sharded.lot_plan import WindowFound, settle
from elastic_runtime.data.sharded.stream_tasks import ReadFailure
from elastic_runtime.errors import BrokenShard, ElasticError, UsageError
from elastic_runtime.worker.peers import by_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_runtime.data.sharded.lot_plan import Lot, Settled
    from elastic_runtime.data.sharded.shard_list import ShardList
    from elastic_runtime.data.sharded.stream_tasks import HeldWindow


# What sets each of the rules.
_SETTINGS = ("their number of shards", "global_batch_size=", "streams=", "shuffle_buffer=", "seed=")


class ShardsUnreachable(ElasticError):
    """A storage did not give a shard, in several tries; a later start may do better."""


def settled_by_all(
    lot: Lot,
    step: int,
    own: Mapping[int, HeldWindow | ReadFailure],
    gather: Callable[[Any], list[Any]],
    shards: ShardList,
) -> Settled:
    """Settles a lot with what all ranks have found.

    Args:
        lot: which; the same on all ranks.
        step: the next one of it.
        own: what this rank has to tell, by stream.
        gather: gives what all ranks have told.
        shards: what this rank reads.

    Raises:
        BrokenShard: a rank could not read a shard, and never will.
        ShardsUnreachable: a rank could not read a shard at present.
        UsageError: ranks are at different places, or have different shards.
    """
    told = gather(_message(lot, step, own) | {"shards": shards.identity})
    if len({message["shards"] for message in told}) > 1:
        lists = by_value([message["shards"] for message in told])
        raise UsageError(
            f"the ranks have other shards, or the same in another order ({lists}; their number and "
            "a digest of their names): give each rank the whole list, which the stream divides "
            "itself"
        )
    failures = [
        (rank, *message["failure"]) for rank, message in enumerate(told) if message["failure"]
    ]
    # What no other try will mend first, as it ends the job.
    for rank, text, final in sorted(failures, key=lambda one: not one[2]):
        raise failure(ReadFailure(f"rank {rank}: {text}" if len(told) > 1 else text, final))
    if len({tuple(message["rules"]) for message in told}) > 1:
        raise UsageError(_other_settings([message["rules"] for message in told]))
    if len({message["at"] for message in told}) > 1:
        places = ", ".join(f"rank {rank}: {m['at']}" for rank, m in enumerate(told))
        raise UsageError(
            f"the ranks are at different places of their stream ({places:.300}); make it an entry "
            "of the State on each rank"
        )
    found: dict[int, WindowFound] = {}
    for message in told:
        for stream, *values in message["found"]:
            one = WindowFound(*values)
            if found.setdefault(stream, one) != one:
                raise UsageError(
                    f"two ranks have found different samples in the same shard (number "
                    f"{lot.places[stream].shards[0]}): {found[stream].total} and {one.total}, "
                    f"up to {found[stream].mark} and {one.mark}; all nodes must have the same "
                    "shards"
                )
    return settle(lot, [found[stream] for stream in range(len(lot.places))])


def _other_settings(rules: list[list[int]]) -> str:
    """Says in which setting ranks differ.

    Args:
        rules: of each rank, which are not all the same.
    """
    by_setting = zip(_SETTINGS, zip(*rules, strict=True), strict=True)
    setting, values = next(pair for pair in by_setting if len(set(pair[1])) > 1)
    told = by_value(values)
    return (
        f"the streams of the ranks differ in {setting} ({told}): make them with the same settings "
        "on each rank"
    )


def _message(lot: Lot, step: int, own: Mapping[int, HeldWindow | ReadFailure]) -> dict[str, Any]:
    digest = hashlib.blake2b(lot.text.encode(), digest_size=4).hexdigest()
    message: dict[str, Any] = {
        "rules": list(astuple(lot.rules)),
        "at": f"epoch {lot.epoch}, lot {lot.number}, step {step}, {digest}",
        "failure": None,
        "found": [],
    }
    for stream, window in own.items():
        if isinstance(window, ReadFailure):
            if message["failure"] is None or window.final:
                message["failure"] = list(window)
        else:
            message["found"].append([stream, *window.found])
    return message


def failure(why: ReadFailure) -> ElasticError:
    """The error that a failure is.

    Args:
        why: the failure.
    """
    return (BrokenShard if why.final else ShardsUnreachable)(why.text)
