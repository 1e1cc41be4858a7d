"""torchtitan on elastic-run: the same configs, in worlds that change, from checkpoints.

=============================================  ==================================================
``--module elastic_runtime.torchtitan``        torchtitan's own configs, and yours by their path
``elastic(config)``                            a config of yours, in your own registry
``ElasticTrainer``, ``ElasticMixin``           torchtitan's ``Trainer``, or yours
``ElasticCheckpointManager``                   saves, resumes in any world, leaves when asked to
``elastic_dataloader(config)``                 a loader whose data are shared out anew
=============================================  ==================================================

The names are loaded when they are first used: importing torchtitan takes seconds.

docs/torchtitan.md is for those who use it; how it works is in docs/architecture.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_runtime.torchtitan.checkpoint_manager import (
        ElasticCheckpointManager as ElasticCheckpointManager,
    )
    from elastic_runtime.torchtitan.elastic_config import elastic as elastic
    from elastic_runtime.torchtitan.elastic_trainer import ElasticMixin as ElasticMixin
    from elastic_runtime.torchtitan.elastic_trainer import ElasticTrainer as ElasticTrainer
    from elastic_runtime.torchtitan.sharing_loader import (
        elastic_dataloader as elastic_dataloader,
    )

_WHERE = {
    "ElasticCheckpointManager": "checkpoint_manager",
    "ElasticMixin": "elastic_trainer",
    "ElasticTrainer": "elastic_trainer",
    "elastic": "elastic_config",
    "elastic_dataloader": "sharing_loader",
}

__all__ = [
    "ElasticCheckpointManager",
    "ElasticMixin",
    "ElasticTrainer",
    "elastic",
    "elastic_dataloader",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from elastic_runtime.torchtitan.supported import check_torchtitan

    check_torchtitan()
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
