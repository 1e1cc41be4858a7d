"""All that the rest of the worker knows of process groups: how a round's ranks come together.

``Reconfigure`` gives the same groups other peers, where torch can do that (2.15 and later); so
groups, and what was built on them, stay alive from round to round. ``Rebuild`` builds new ones.
``--regroup`` chooses, and the agent passes it on in ``ELASTIC_REGROUP``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
import torch.distributed as dist

from elastic_runtime.system import torch_private
from elastic_runtime.system.torch_version import REBUILD, choose_regroup, has_gpus

if TYPE_CHECKING:
    from elastic_runtime.worker.groups.round_ranks import RankInRound, Ranks
    from elastic_runtime.worker.groups.store_clients import Stores


class Regrouping(Protocol):
    """How this process comes from the ranks of one round to those of the next.

    Attributes:
        name: as in ``--regroup``.
    """

    name: ClassVar[str]

    def rehearse(self) -> None:
        """Does once, alone, what a rank does when it enters a round: the first time takes longest.

        Loading kernels, starting autograd's threads and the like take some 15 ms in a new process,
        for which all ranks of the round would wait.
        """

    def ranks(self, place: RankInRound) -> Ranks:
        """The ranks of a round, not connected yet.

        Args:
            place: of this process in it.
        """

    def alone(self) -> dist.ProcessGroup:
        """Makes the default process group one of this process alone, between two rounds."""

    def close(self) -> None:
        """Leaves nothing behind in torch."""


def choose_regrouping(stores: Stores, wanted: str) -> Regrouping:
    """What ``--regroup`` says, as far as this torch can do it.

    Args:
        stores: clients of the rounds' stores.
        wanted: as in ``--regroup``.

    Raises:
        UsageError: this torch cannot do it.
    """
    from elastic_runtime.worker.groups.rebuild import Rebuild
    from elastic_runtime.worker.groups.reconfigure import Reconfigure

    chosen = choose_regroup(wanted, torch.__version__, gpus=has_gpus())
    if chosen == REBUILD or not torch_private.can_reconfigure():
        return Rebuild(stores)
    return Reconfigure(stores)


def rehearse_training() -> None:
    """A training step in the present default group.

    There is none with TORCH_DISTRIBUTED_DEBUG=DETAIL, as ``DistributedDataParallel`` ends a process
    with that in some versions of torch (2.13 and 2.15), and the script may not use it. Nothing of
    it is the script's, so the modes that it has set for its own tensors do not count.
    """
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        return
    with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
        weight = torch.nn.Linear(8, 8, bias=False, device="meta").to_empty(device="cpu")
        torch.nn.init.ones_(weight.weight)
        parallel = torch.nn.parallel.DistributedDataParallel(weight)
        loss = torch.nn.functional.cross_entropy(
            parallel(torch.ones(4, 8)), torch.zeros(4, dtype=torch.int64)
        )
        loss.backward()
