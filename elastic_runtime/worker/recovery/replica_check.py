"""Refuses models of which each rank has only a part: they cannot recover in place.

In place each rank must have a complete copy, as any rank may be the only one that survives. Some
models are recognized at once: their parameters are DTensors, or belong to FSDP. Others, of which
each rank has other experts or layers under the same names, are recognized in their first steps:
gradients that are not averaged over all ranks differ clearly, and so do the parameters after the
optimizer. Both must differ: ranks on different processors may differ in the last bits although
their gradients were averaged, and scripts that average parameters instead have different gradients
on each rank.
"""

from __future__ import annotations

import sys
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.limits import REPLICA_CHECKS_UNTIL, REPLICA_TOLERANCE
from elastic_runtime.parts.commit_image import sample_of, sampled_digest
from elastic_runtime.parts.module_part import ModulePart
from elastic_runtime.parts.tensor_memory import sharded_kind
from elastic_runtime.parts.wrappers import unwrapped
from elastic_runtime.worker.peers import Peers
from elastic_runtime.worker.recovery.error_classification import WorldChanged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist

    from elastic_runtime.parts.part import StatePart

REMEDY = (
    "models that are spread over ranks (FSDP, tensor, pipeline or expert parallel) do not recover "
    "in place: write elastic.run(train, state, in_place=False), and the job restarts from "
    "checkpoints, which are resharded (docs/checkpoints.md)"
)

_NONE = [0.0, 0.0]  # the fingerprint where there is no gradient


def refuse_sharded(parts: Sequence[StatePart]) -> None:
    """Refuses what shows at once that a rank holds no whole copy.

    Raises:
        UsageError: a parameter is a DTensor, or a module that of FSDP.
    """
    spread, fsdp = sharded_kind(), _fsdp_kind()
    if not spread and not fsdp:
        return
    for part in parts:
        if not isinstance(part, ModulePart):
            continue
        for name, module in part.module.named_modules():
            if isinstance(module, fsdp):
                raise UsageError(f"{part.name}{name and '.'}{name} is wrapped by FSDP; {REMEDY}")
        for name, parameter in part.parameters().items():
            if isinstance(parameter, spread):
                raise UsageError(f"{part.name}.{name} is a DTensor; {REMEDY}")


class ReplicaCheck:
    """Compares what the ranks of one round hold, at a few of the first commits of a job."""

    def __init__(
        self,
        parts: Sequence[StatePart],
        modules: Mapping[str, torch.nn.Module],
        group: dist.ProcessGroup | None,
    ) -> None:
        """Takes what to compare; nothing is sent yet.

        Args:
            parts: of a State in place, whose ranks must hold all of it; none in the restart form.
            modules: of the State, by name. What is sharded over ranks is not compared.
            group: all ranks of the round, over gloo; None if this rank is alone.
        """
        self._parts = parts
        self._modules = {name: unwrapped(module) for name, module in modules.items()}
        self._peers = Peers(group) if group is not None else None
        self._looked = False
        self._seen: dict[int, list[float]] = {}  # fingerprints of gradients, by parameter

    def before_optimizer(self, optimizer: torch.optim.Optimizer, number: int) -> None:
        """Notes the gradients that an optimizer is about to use, if this step is looked at.

        Args:
            optimizer: which.
            number: that of the commit to come.
        """
        if self._peers is not None and _is_due(number):
            sharded = sharded_kind()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradient = parameter.grad
                    if gradient is None or gradient.is_sparse or isinstance(gradient, sharded):
                        continue
                    self._seen[id(parameter)] = _fingerprint(gradient)

    def before_commit(self, number: int) -> None:
        """Looks at the ranks, if this commit is one of those.

        Args:
            number: how many commits there will be with this one, the same on all ranks.

        Raises:
            UsageError: this rank holds no whole copy; raised on all ranks, and no step counts.
        """
        if not self._looked:
            self._looked = True
            refuse_sharded(self._parts)
        if self._peers is not None and _is_due(number):
            # If a rank is lost in between, the step is whole here, and counts: the commit, which
            # is about to look, leaves the round.
            with suppress(RuntimeError, ValueError, WorldChanged):
                self._compare(self._peers)
            self._seen.clear()

    def _compare(self, peers: Peers) -> None:
        sharded, fsdp = sharded_kind(), _fsdp_kind()
        named = {
            f"{module}.{name}": parameter
            for module, held in self._modules.items()
            if not any(isinstance(one, fsdp) for one in held.modules())
            for name, parameter in held.named_parameters(remove_duplicate=False)
            if not isinstance(parameter, sharded)
        }
        names = zlib.crc32("\n".join(named).encode())
        if len(set(peers.gather(sampled_digest(list(named.values()), names)))) == 1:
            return
        mine = {name: self._seen.get(id(parameter)) for name, parameter in named.items()}
        ranks: list[dict[str, list[float] | None]] = peers.gather(mine)
        for name in dict.fromkeys(name for each in ranks for name in each):
            lacking = next((rank for rank, each in enumerate(ranks) if name not in each), None)
            if lacking is not None:
                if self._parts:
                    raise UsageError(f"rank {lacking} has no {name}; {REMEDY}")
                continue  # a stage of a pipeline: ranks hold different layers
            if differ := _far_apart([each[name] for each in ranks]):
                one, other = differ
                raise UsageError(
                    f"{name} has other gradients on rank {other} than on rank {one}, and other "
                    "values after the step: it is not the same model on all ranks, or its "
                    "gradients are not averaged (DistributedDataParallel does that, with "
                    "find_unused_parameters=True where a parameter may have no part in the loss)"
                    + (f"; {REMEDY}" if self._parts else "")
                )


def _fsdp_kind() -> Any:
    """The class that wraps modules in torch's first FSDP; none if nothing has imported it."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())


def _is_due(number: int) -> bool:
    return number <= REPLICA_CHECKS_UNTIL and number.bit_count() == 1


def _far_apart(values: Sequence[list[float] | None]) -> tuple[int, int] | None:
    """Two ranks whose gradients of one parameter differ by more than rounding, if there are any.

    Args:
        values: the fingerprint on each rank, None where there was no gradient.
    """
    first = next((rank for rank, value in enumerate(values) if value is not None), None)
    if first is None:
        return None
    for rank, value in enumerate(values):
        here, there = values[first] or _NONE, value or _NONE
        limit = REPLICA_TOLERANCE * max(here[0], there[0])
        if any(abs(one - other) > limit for one, other in zip(here, there, strict=True)):
            return first, rank
    return None


def _fingerprint(gradient: torch.Tensor) -> list[float]:
    """The size of a sample of a gradient, and its length along a fixed direction."""
    sample = sample_of(gradient.detach()).double().cpu()
    direction = torch.arange(1, len(sample) + 1, dtype=torch.float64, device="cpu")
    direction.mul_(2.399963).sin_()
    return [float(sample.abs().sum()), float(sample @ direction)]
