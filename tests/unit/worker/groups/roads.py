"""The ways of regrouping that the installed torch has, for tests that are made on each of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist

from elastic_runtime.system import torch_private
from elastic_runtime.worker.groups.rebuild import Rebuild
from elastic_runtime.worker.groups.reconfigure import Reconfigure
from elastic_runtime.worker.groups.round_ranks import RankInRound
from elastic_runtime.worker.groups.store_clients import Stores
from tests.ranks import run_ranks, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.worker.groups.regrouping import Regrouping
    from elastic_runtime.worker.groups.round_ranks import Ranks

_KINDS: dict[str, type[Rebuild] | type[Reconfigure]] = {
    kind.name: kind for kind in (Rebuild, Reconfigure)
}

needs_reconfigure = pytest.mark.skipif(
    not torch_private.can_reconfigure(), reason="torch can do this from 2.15 on"
)
ROADS = [Rebuild.name, pytest.param(Reconfigure.name, marks=needs_reconfigure)]


def regrouping(road: str, stores: Stores | None = None) -> Regrouping:
    """One of them, new."""
    return _KINDS[road](stores or Stores())


def serve() -> dist.TCPStore:
    """A store as an agent hosts it."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def on_ranks(size: int, work: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What so many new ranks return that are given the port of a store, and these arguments."""
    server = serve()
    return values(run_ranks(size, partial(work, **options), server.port, *args))


def place(port: int, size: int = 1, *, rank: int = 0, number: int = 1) -> RankInRound:
    """A rank's place in a round."""
    return RankInRound(number, rank, size, "127.0.0.1", port, f"round/{number}")


def in_place(port: int, road: str) -> tuple[Ranks, dist.TCPStore]:
    """The ranks of a round instead of the group that the test begins with.

    Args:
        port: of the store.
        road: one of ``ROADS``.

    Returns:
        The ranks, not connected yet; a client of the store that outlives an interrupt.
    """
    size = dist.get_world_size()
    rank, store = begin_in_place(port)
    return regrouping(road).ranks(place(port, size, rank=rank)), store


def begin_in_place(port: int) -> tuple[int, dist.TCPStore]:
    """Ends the group that a test begins with.

    Returns:
        The rank of this process; a client of the store that outlives an interrupt.
    """
    alone = not dist.is_initialized()
    rank, size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    meet(store, "begun", size)
    torch_private.abort_groups()
    return rank, store


def meet(store: dist.TCPStore, name: str, size: int) -> None:
    """Waits for all ranks without a group, so that none breaks what another still needs."""
    if store.add(name, 1) == size:
        store.set(f"all {name}", "1")
    store.wait([f"all {name}"], timedelta(seconds=50))
