"""elastic-runtime: an elastic, fault-tolerant training runtime for PyTorch.

The public names are loaded when they are first used, so that importing a part that does not need
torch never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_runtime.agent.launch import launch as launch
    from elastic_runtime.config import Endpoint as Endpoint
    from elastic_runtime.config import Entry as Entry
    from elastic_runtime.config import JobConfig as JobConfig
    from elastic_runtime.data.data_loader import DataLoader as DataLoader
    from elastic_runtime.data.sample_seeds import sample_rng as sample_rng
    from elastic_runtime.data.sharded.sharded_stream import ShardedStream as ShardedStream
    from elastic_runtime.diloco.diloco import DiLoCo as DiLoCo
    from elastic_runtime.diloco.diloco import LocalSGD as LocalSGD
    from elastic_runtime.errors import CheckpointError as CheckpointError
    from elastic_runtime.parts.per_rank import PerRank as PerRank
    from elastic_runtime.training.checkpoints import load as load
    from elastic_runtime.training.run import busy as busy
    from elastic_runtime.training.run import run as run
    from elastic_runtime.training.state import State as State
    from elastic_runtime.worker.groups.kept_ddp import ddp as ddp
    from elastic_runtime.worker.world import World as World

__version__ = "0.1.0"

_WHERE = {
    "CheckpointError": "elastic_runtime.errors",
    "DataLoader": "elastic_runtime.data.data_loader",
    "DiLoCo": "elastic_runtime.diloco.diloco",
    "Endpoint": "elastic_runtime.config",
    "Entry": "elastic_runtime.config",
    "JobConfig": "elastic_runtime.config",
    "LocalSGD": "elastic_runtime.diloco.diloco",
    "PerRank": "elastic_runtime.parts.per_rank",
    "ShardedStream": "elastic_runtime.data.sharded.sharded_stream",
    "State": "elastic_runtime.training.state",
    "World": "elastic_runtime.worker.world",
    "busy": "elastic_runtime.training.run",
    "ddp": "elastic_runtime.worker.groups.kept_ddp",
    "launch": "elastic_runtime.agent.launch",
    "load": "elastic_runtime.training.checkpoints",
    "run": "elastic_runtime.training.run",
    "sample_rng": "elastic_runtime.data.sample_seeds",
}

__all__ = [
    "CheckpointError",
    "DataLoader",
    "DiLoCo",
    "Endpoint",
    "Entry",
    "JobConfig",
    "LocalSGD",
    "PerRank",
    "ShardedStream",
    "State",
    "World",
    "__version__",
    "busy",
    "ddp",
    "launch",
    "load",
    "run",
    "sample_rng",
]


# Where people look for them as well; they need Lightning, and are not among the names above.
_OF_LIGHTNING = ("ElasticCallback", "ElasticEnvironment", "ElasticStrategy")


def __getattr__(name: str) -> Any:
    if name in _OF_LIGHTNING:
        return getattr(importlib.import_module("elastic_runtime.lightning"), name)
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
