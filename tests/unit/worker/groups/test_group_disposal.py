"""The end of process groups: nobody who is needed waits for it, and nothing is left."""

from __future__ import annotations

import gc
import time
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.system import torch_private
from elastic_runtime.worker.groups import group_disposal
from elastic_runtime.worker.groups.rebuild import Rebuild
from elastic_runtime.worker.groups.store_clients import Stores
from elastic_runtime.worker.peers import GlooGroups
from tests import processes
from tests.ranks import run_ranks, values
from tests.unit.worker.groups.roads import in_place, meet, serve

if TYPE_CHECKING:
    import pytest

CPU = torch.device("cpu")


def lets_go_of_a_group_that_waits(port: int) -> int:
    """Drops what refers to a group in which a collective never ends; the time-out is half an hour.

    Returns:
        How many threads wait for that end.
    """
    ranks, store = in_place(port, Rebuild.name)
    ranks.build()
    meet(store, "built", 2)
    if ranks.place.rank == 1:
        store.wait(["dropped"], timedelta(seconds=50))
        return 0
    group = ranks.group
    assert group is not None
    holder = [GlooGroups(group, ranks.another_group, ranks.interrupted.is_set)]
    work: Any = group._get_backend(CPU).allreduce([torch.ones(1)])
    held = [weakref.ref(group)]
    del group, work
    ranks.group = None
    group_disposal.drop_later(torch_private.abort_groups())
    resting = group_disposal._background[-1]
    resting.join(timeout=50)
    holder.clear()  # it comes after the rest, as a checkpointer does in the next round
    processes.wait_for(lambda: held[0]() is None, 50, "the end of the last reference")
    group_disposal._background[-1].join(timeout=1.0)
    waits = sum(one.is_alive() for one in group_disposal._background)
    store.set("dropped", "1")
    return waits


def test_nobody_who_is_needed_waits_for_the_end_of_a_group() -> None:
    server = serve()
    waits, _ = values(run_ranks(2, lets_go_of_a_group_that_waits, server.port))
    assert waits


def drops_the_groups_of_a_round(port: int) -> tuple[int, int]:
    """Trains once in a round, and waits until nothing refers to its groups any more.

    Returns:
        How many groups it had, and how many are still kept.
    """
    ranks, _ = in_place(port, Rebuild.name)
    Rebuild(Stores()).rehearse()
    ranks.build()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))(torch.ones(1)).backward()
    groups = [weakref.ref(group) for group in torch_private.all_groups()]
    ranks.take_apart()
    for one in group_disposal._background:
        one.join(timeout=50)
    gc.collect()
    processes.wait_for(lambda: not any(one() for one in groups), 50, "the end of all groups")
    return len(groups), len(group_disposal._kept)


def test_the_groups_of_a_round_are_dropped_when_nobody_refers_to_them() -> None:
    server = serve()
    for had, kept in values(run_ranks(2, drops_the_groups_of_a_round, server.port)):
        assert had >= 2, "the default group, and that of the runtime"
        assert kept == 0


class _Cycle:
    """Stands for a ``DDP``: refers to a group until it is collected as garbage."""

    def __init__(self, group: object) -> None:
        self.group = group
        self.me = self


class _Group:
    """Is as good as a group, as far as dropping goes."""


def test_what_only_garbage_refers_to_does_not_pile_up() -> None:
    groups: list[Any] = [_Group() for _ in range(group_disposal._MANY + 1)]
    held = [weakref.ref(group) for group in groups]
    gc.disable()
    try:
        for group in groups:
            _Cycle(group)
        del group
        group_disposal.drop_later(groups)
        assert processes.wait_for(
            lambda: not any(ref() for ref in held), 50, "the end of all groups"
        )
    finally:
        gc.enable()


def test_a_rest_does_not_count_while_the_machine_runs_nobody() -> None:
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        begun = time.monotonic()
        while time.monotonic() < begun + (0.06 if len(slept) <= 7 else 0.001):
            pass

    group_disposal.rest(sleep)
    assert len(slept) >= 7 + 10


def test_a_rest_ends_on_a_machine_that_is_always_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_disposal, "_LONGEST_REST", 0.2)
    monkeypatch.setattr(group_disposal, "_REST", 0.0)
    slept: list[float] = []
    group_disposal.rest(slept.append)
    assert len(slept) > 10
