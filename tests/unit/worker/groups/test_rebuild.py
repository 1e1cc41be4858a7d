"""Groups that are built anew in each round."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from elastic_runtime.worker.groups.rebuild import Rebuild
from elastic_runtime.worker.groups.store_clients import Stores
from tests.ranks import run_ranks, values
from tests.unit.worker.groups.roads import begin_in_place, meet, place, serve


def builds_other_groups(port: int) -> list[Any]:
    """What there is before, in and after two rounds, and alone."""
    me, test = begin_in_place(port)
    here = Rebuild(Stores())
    here.rehearse()
    found: list[Any] = [dist.is_initialized()]
    groups = []
    for number in (1, 2):
        ranks = here.ranks(place(port, 2, rank=me, number=number))
        ranks.build()
        ones = torch.ones(1)
        dist.all_reduce(ones, group=ranks.group)
        found.append(ones.item())
        groups.append(dist.group.WORLD)
        meet(test, f"round {number}", 2)
        ranks.take_apart()
        found.append(dist.is_initialized())
    here.alone()
    found += [dist.get_world_size(), groups[0] is groups[1]]
    here.close()
    return found


def test_each_round_has_groups_of_its_own() -> None:
    server = serve()
    expected = [False, 2.0, False, 2.0, False, 1, False]
    assert values(run_ranks(2, builds_other_groups, server.port)) == [expected] * 2
