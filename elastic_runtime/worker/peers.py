"""The other ranks of the job, for small exchanges that have nothing to do with training.

They run on a gloo group of their own, whatever the job trains with, and carry JSON: nothing that
a peer sends is ever executed. With one rank, or without ``torch.distributed``, nothing is sent.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from elastic_runtime.errors import (
    CheckpointError,
    CheckpointFailed,
    CheckpointUsageError,
    DamagedCheckpoint,
    SaveOverdue,
    Superseded,
    UnknownFormat,
    UsageError,
)
from elastic_runtime.system import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The first exchange of an answer, in bytes: its length, and as much of it as fits.
_LENGTH = 8
_HEAD = 1024
_SHORT = _HEAD - _LENGTH

# Errors of one rank that are raised on all ranks. If several ranks fail, the first class in this
# list is raised everywhere: it explains the others, or shows that a retry is useless.
_RAISED: dict[str, type[CheckpointError]] = {
    cls.__name__: cls
    for cls in (
        DamagedCheckpoint,
        UnknownFormat,
        CheckpointUsageError,
        Superseded,
        SaveOverdue,
        CheckpointFailed,
    )
}


@dataclass(frozen=True, slots=True)
class GlooGroups:
    """The gloo groups of a round, made by ``elastic.run``, which also ends them.

    Attributes:
        group: all ranks, over gloo.
        another: makes one more such group; all ranks must call it at the same point.
        interrupted: whether another thread has ended the groups because of a fault.
        leaves: whether it is known that somebody leaves, and all leave the round at a commit.
    """

    group: dist.ProcessGroup
    another: Callable[[], dist.ProcessGroup]
    interrupted: Callable[[], bool]
    leaves: Callable[[], bool] = lambda: False


class Peers:
    """All ranks of the job.

    Attributes:
        rank: this one.
        world: how many there are.
        group: the gloo group that they share; None if there is only one rank.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, alone: bool = False) -> None:
        """Makes the group; all ranks must call it at the same point of the program.

        Args:
            group: a gloo group of all ranks to use; None: make a new one.
            alone: ranks that are not connected yet may each do something for themselves.

        Raises:
            UsageError: the job has several ranks, but they have not been connected yet.
        """
        self.rank, self.world = 0, 1
        self.group: dist.ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        elif not alone and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise UsageError(
                f"torch.distributed is not initialized (WORLD_SIZE={os.environ['WORLD_SIZE']}): "
                "call init_process_group() before a stream is used; with "
                "elastic.run, leave that use out"
            )
        if self.world > 1:
            self.group = group or dist.new_group(backend="gloo", group_desc=torch_private.OWN_GROUP)

    def gather(self, value: Any, purpose: str = "state.commit() or save()") -> list[Any]:
        """Gathers one value of each rank, in rank order, on every rank.

        Args:
            value: plain JSON.
            purpose: what the script has called on this rank; all ranks must have called the same.

        Raises:
            UsageError: ranks have come together for different purposes; raised on all of them.
        """
        if self.group is None:
            return [value]
        data = json.dumps([purpose, value]).encode()
        # Most values are short, and then one exchange is enough. Each costs a millisecond, and
        # more where ranks share a core.
        heads = self._exchange(len(data).to_bytes(_LENGTH, "little") + data[:_SHORT], _HEAD)
        sizes = [int.from_bytes(head[:_LENGTH], "little") for head in heads]
        longest = max(sizes) - _SHORT
        rests = self._exchange(data[_SHORT:], longest) if longest > 0 else [b""] * self.world
        answers = []
        for head, rest, size in zip(heads, rests, sizes, strict=True):
            answers.append(json.loads((head[_LENGTH:] + rest)[:size]))
        if any(theirs != purpose for theirs, _ in answers):
            told = by_value([theirs for theirs, _ in answers])
            raise UsageError(
                f"the ranks do not do the same ({told}): call what waits for the others on all "
                "ranks, and under no condition that differs between them"
            )
        return [value for _, value in answers]

    def _exchange(self, data: bytes, size: int) -> list[bytes]:
        """Bytes of every rank, each filled up to the same size."""
        mine = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        everyones = torch.empty(self.world * size, dtype=torch.uint8, device="cpu")
        # Before torch 2.13 it was called otherwise, and that name warns since.
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(everyones, mine, group=self.group)
        found = ctypes.string_at(everyones.data_ptr(), len(everyones))
        return [found[at : at + size] for at in range(0, len(found), size)]

    def on_first(self, action: Callable[[], Any]) -> Any:
        """Runs an action on rank 0; all ranks get its result, or raise its error.

        Args:
            action: returns plain JSON.

        Returns:
            What rank 0's action returned.

        Raises:
            CheckpointError: rank 0's action raised it.
        """
        outcome = _outcome(action) if self.rank == 0 else {}
        data = json.dumps(outcome).encode()
        # Only the result of rank 0 can be long; a buffer for all ranks would be ``world`` times
        # as large.
        first = self.gather(outcome if len(data) <= _SHORT else {"bytes": len(data)})[0]
        if "bytes" in first:
            first = json.loads(self._from_first(data, first["bytes"]))
        return _values([first])[0]

    def _from_first(self, data: bytes, size: int) -> bytes:
        if self.group is None:
            return data
        buffer = torch.empty(size, dtype=torch.uint8, device="cpu")
        if self.rank == 0:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(buffer, group=self.group, group_src=0)
        return ctypes.string_at(buffer.data_ptr(), size)

    def share_out(self, action: Callable[[], Sequence[Any]]) -> Any:
        """Runs an action on rank 0 and sends each rank its own part of the result.

        Args:
            action: returns plain JSON for each rank, by rank.

        Raises:
            CheckpointError: rank 0's action raised it, on every rank.
        """
        parts: list[bytes] = []

        def work() -> int:
            parts.extend(json.dumps(part).encode() for part in action())
            return max(map(len, parts))

        size = self.on_first(work)
        if self.group is None:
            return json.loads(parts[0])
        mine = torch.empty(size, dtype=torch.uint8, device="cpu")
        everyones = [
            torch.frombuffer(bytearray(part.ljust(size)), dtype=torch.uint8) for part in parts
        ]
        dist.scatter(mine, everyones or None, group=self.group, group_src=0)
        return json.loads(ctypes.string_at(mine.data_ptr(), size))

    def to_first(self, value: Any) -> list[Any] | None:
        """Sends a value of each rank to rank 0, and to no other rank.

        Args:
            value: plain JSON, of any length; None: nothing is sent.

        Returns:
            On rank 0 what each rank has given, by rank; None on the others.
        """
        data = b"" if value is None else json.dumps(value).encode()
        if self.group is None:
            return [json.loads(data) if data else None]
        sizes = self.gather(len(data))
        if self.rank != 0:
            if data:
                mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                dist.send(mine, group=self.group, group_dst=0)
            return None
        buffers, arriving = {}, []
        for rank, size in enumerate(sizes):
            if rank and size:
                buffer = buffers[rank] = torch.empty(size, dtype=torch.uint8, device="cpu")
                arriving.append(dist.irecv(buffer, group=self.group, group_src=rank))
        for one in arriving:
            one.wait()
        found = {r: json.loads(ctypes.string_at(x.data_ptr(), len(x))) for r, x in buffers.items()}
        if data:
            found[0] = json.loads(data)
        return [found.get(rank) for rank in range(self.world)]

    def on_each(self, action: Callable[[], Any]) -> list[Any]:
        """Runs an action on each rank; all ranks get all results, or raise the same error.

        Args:
            action: returns plain JSON.

        Raises:
            CheckpointError: an action raised it on some rank; every rank raises the most telling
                of these errors.
        """
        return _values(self.gather(_outcome(action)))


def by_value(values: Sequence[Any]) -> str:
    """Which ranks have which value; first the value that the fewest have.

    Args:
        values: of each rank.
    """
    ranks: dict[Any, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    told = []
    for value, having in sorted(ranks.items(), key=lambda pair: len(pair[1]))[:4]:
        names, more = ", ".join(map(str, having[:4])), len(having) - 4
        others = f" and {more} more" if more > 0 else ""
        told.append(f"{value} on rank{'s' if len(having) > 1 else ''} {names}{others}")
    return "; ".join(told)


def _outcome(action: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": action()}
    except CheckpointError as error:
        return {"error": type(error).__name__, "text": str(error)}


def _values(outcomes: list[dict[str, Any]]) -> list[Any]:
    failures = [each for each in outcomes if "error" in each]
    if failures:
        worst = min(failures, key=lambda each: list(_RAISED).index(each["error"]))
        raise _RAISED[worst["error"]](worst["text"])
    return [each["value"] for each in outcomes]
