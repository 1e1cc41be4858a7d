"""Regrouping for every torch: each round builds new process groups, and ends them when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch.distributed as dist

from elastic_runtime.system import torch_private
from elastic_runtime.worker.groups.group_disposal import drop_later
from elastic_runtime.worker.groups.regrouping import rehearse_training
from elastic_runtime.worker.groups.round_ranks import RankInRound, Ranks
from elastic_runtime.worker.groups.store_clients import BUILD_TIMEOUT

if TYPE_CHECKING:
    from elastic_runtime.worker.groups.store_clients import StoreClient, Stores


class Rebuild:
    """See ``regrouping.Regrouping``."""

    name: ClassVar[str] = "rebuild"

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def rehearse(self) -> None:
        """Trains alone for a moment."""
        self.alone()
        rehearse_training()
        drop_later(torch_private.abort_groups())

    def ranks(self, place: RankInRound) -> Ranks:
        """The ranks of a round."""
        return RebuiltRanks(place, self._stores)

    def alone(self) -> dist.ProcessGroup:
        """A world of this process alone."""
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        group = dist.group.WORLD
        assert group is not None
        return group

    def close(self) -> None:
        """There is nothing left: each round has ended its groups."""


class RebuiltRanks(Ranks):
    """The ranks of a round whose groups begin and end with it."""

    def _connect(self, client: StoreClient, *, gpu: bool) -> dist.ProcessGroup:
        place = self.place
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            store=dist.PrefixStore(place.key, client.store),
            rank=place.rank,
            world_size=place.size,
            timeout=BUILD_TIMEOUT,
        )
        return self.another_group()

    def _end_groups(self) -> list[Any]:
        return torch_private.abort_groups()
