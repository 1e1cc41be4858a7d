"""Whether one more snapshot fits into the memory of all nodes, and why not: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from elastic_runtime.limits import MEMORY_RESERVE
from elastic_runtime.reporting.wording import size

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """What one node needs and has, in bytes.

    Attributes:
        node: its name.
        machine: nodes with the same one share its memory.
        needed: for its own files and the copies of its buddy's.
        beside: for what else it takes meanwhile, outside of the directory.
        kept: what is in its directory, and stays until the snapshot is complete.
        limit: what may be there.
        free: in the file system of the directory.
        available: memory that can be taken without swapping.
        total: memory of the machine.
    """

    node: str
    machine: str
    needed: int
    beside: int
    kept: int
    limit: int
    free: int
    available: int
    total: int

    def encode(self) -> list[Any]:
        """Plain JSON; what makes one from it is ``NodeMemory(*…)``."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no snapshot is taken.

    Attributes:
        kind: the same for the same reason with other numbers.
        text: for people.
    """

    kind: str
    text: str


def memory_refusal(nodes: Sequence[NodeMemory]) -> Refusal | None:
    """Why a snapshot does not fit; None if it does.

    Args:
        nodes: of all nodes.
    """
    for one in nodes:
        if one.kept + one.needed > one.limit:
            return Refusal(
                "limit",
                f"on {one.node} it takes {size(one.needed)} beside the {size(one.kept)} that "
                f"are kept until it is complete, and --snapshot-memory is {size(one.limit)}; "
                f"give it {size(one.kept + one.needed)} or more",
            )
    for one in nodes:
        here = [other for other in nodes if other.machine == one.machine]
        needed = sum(other.needed for other in here)
        if needed > one.free:
            return Refusal(
                "tmpfs",
                f"on the machine of {one.node} it takes {size(needed)}, and /dev/shm has "
                f"{size(one.free)} left; enlarge it (in a container: --shm-size, or a volume in "
                "memory there)",
            )
        taken = needed + sum(other.beside for other in here)
        if taken + one.total * MEMORY_RESERVE > one.available:
            return Refusal(
                "memory",
                f"on the machine of {one.node} it takes {size(taken)} of memory, and "
                f"{size(one.available)} of {size(one.total)} are left, of which a twentieth is "
                "left to others",
            )
    return None
