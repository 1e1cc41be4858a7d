"""torchtitan on elastic-run: the same configs, in worlds that change, from checkpoints.

=============================================  ==================================================
``--module elastic_runtime.torchtitan``        torchtitan's own configs, and yours by their path
``elastic(config)``                            a config of yours, in your own registry
``ElasticTrainer``, ``ElasticMixin``           torchtitan's ``Trainer``, or yours
``ElasticCheckpointManager``                   saves, resumes in any world, leaves when asked to
``elastic_dataloader(config)``                 a loader whose data are shared out anew
=============================================  ==================================================

docs/torchtitan.md is for those who use it; how it works is in docs/architecture.md.
"""

from __future__ import annotations

from elastic_runtime.torchtitan.supported import check_torchtitan

check_torchtitan()

from elastic_runtime.torchtitan.checkpoint_manager import ElasticCheckpointManager  # noqa: E402
from elastic_runtime.torchtitan.elastic_config import elastic  # noqa: E402
from elastic_runtime.torchtitan.elastic_dataloader import elastic_dataloader  # noqa: E402
from elastic_runtime.torchtitan.elastic_trainer import ElasticMixin, ElasticTrainer  # noqa: E402

__all__ = [
    "ElasticCheckpointManager",
    "ElasticMixin",
    "ElasticTrainer",
    "elastic",
    "elastic_dataloader",
]
