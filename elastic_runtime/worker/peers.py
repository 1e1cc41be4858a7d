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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The first exchange of an answer, in bytes: its length, and as much of it as fits.
_LENGTH = 8
_HEAD = 1024
_SHORT = _HEAD - _LENGTH

# What can be raised on one rank and is heard on all. If several ranks fail, the first of these in
# the list says most: it explains the others, or no other try will do better.
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
    """The groups that somebody else has made, and will end.

    Attributes:
        group: all ranks, over gloo.
        another: makes one more of that kind, on all ranks at the same point.
        interrupted: whether the groups have been ended from another thread.
    """

    group: dist.ProcessGroup
    another: Callable[[], dist.ProcessGroup]
    interrupted: Callable[[], bool]


class Peers:
    """All ranks of the job.

    Attributes:
        rank: this one.
        world: how many there are.
        group: the gloo group that they share; None if there is only one rank.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Makes the group. All ranks must do so at the same point of the program.

        Args:
            group: all ranks, over gloo, if there is such a group already.

        Raises:
            UsageError: the job has several ranks, but they have not been connected yet.
        """
        self.rank, self.world = 0, 1
        self.group: dist.ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        elif int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise UsageError(
                f"torch.distributed is not initialized (WORLD_SIZE={os.environ['WORLD_SIZE']}): "
                "call init_process_group() before a checkpointer is used; with elastic.run, "
                "leave that use out"
            )
        if self.world > 1:
            self.group = group or dist.new_group(backend="gloo")

    def gather(self, value: Any) -> list[Any]:
        """What each rank gives, by rank, on every rank.

        Args:
            value: plain JSON.
        """
        if self.group is None:
            return [value]
        data = json.dumps(value).encode()
        # Most answers are short, and then one exchange is enough: each costs a millisecond, and
        # more where ranks share a core.
        heads = self._exchange(len(data).to_bytes(_LENGTH, "little") + data[:_SHORT], _HEAD)
        sizes = [int.from_bytes(head[:_LENGTH], "little") for head in heads]
        longest = max(sizes) - _SHORT
        rests = self._exchange(data[_SHORT:], longest) if longest > 0 else [b""] * self.world
        answers = []
        for head, rest, size in zip(heads, rests, sizes, strict=True):
            answers.append(json.loads((head[_LENGTH:] + rest)[:size]))
        return answers

    def _exchange(self, data: bytes, size: int) -> list[bytes]:
        """Bytes of every rank, each filled up to the same size."""
        mine = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        everyones = torch.empty(self.world * size, dtype=torch.uint8, device="cpu")
        dist.all_gather_single(everyones, mine, group=self.group)
        found = ctypes.string_at(everyones.data_ptr(), len(everyones))
        return [found[at : at + size] for at in range(0, len(found), size)]

    def on_first(self, action: Callable[[], Any]) -> Any:
        """Does something on rank 0 and gives its result, or its failure, to all.

        Args:
            action: returns plain JSON.

        Returns:
            What rank 0's action returned.

        Raises:
            CheckpointError: rank 0's action raised it.
        """
        outcome = _outcome(action) if self.rank == 0 else {}
        data = json.dumps(outcome).encode()
        # Only rank 0's can be long: room for one from each rank would be ``world`` times as much.
        first = self.gather(outcome if len(data) <= _SHORT else {"bytes": len(data)})[0]
        if "bytes" in first:
            first = json.loads(self._from_first(data, first["bytes"]))
        return _values([first])[0]

    def _from_first(self, data: bytes, size: int) -> bytes:
        if self.group is None:
            return data
        room = torch.empty(size, dtype=torch.uint8, device="cpu")
        if self.rank == 0:
            room.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(room, group=self.group, group_src=0)
        return ctypes.string_at(room.data_ptr(), size)

    def share_out(self, action: Callable[[], Sequence[Any]]) -> Any:
        """Does something on rank 0 and gives each rank its own part of the result.

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
        """Gives what each rank has to rank 0, and to nobody else.

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
        rooms, arriving = {}, []
        for rank, size in enumerate(sizes):
            if rank and size:
                room = rooms[rank] = torch.empty(size, dtype=torch.uint8, device="cpu")
                arriving.append(dist.irecv(room, group=self.group, group_src=rank))
        for one in arriving:
            one.wait()
        found = {r: json.loads(ctypes.string_at(x.data_ptr(), len(x))) for r, x in rooms.items()}
        if data:
            found[0] = json.loads(data)
        return [found.get(rank) for rank in range(self.world)]

    def on_each(self, action: Callable[[], Any]) -> list[Any]:
        """Does something on each rank and gives all results, or one failure, to all.

        Args:
            action: returns plain JSON.

        Raises:
            CheckpointError: an action raised it: of those that say most that of the lowest rank,
                on every rank.
        """
        return _values(self.gather(_outcome(action)))


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
