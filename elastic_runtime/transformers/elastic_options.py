"""How an elastic ``Trainer`` is saved and goes on."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from elastic_runtime.checkpoint.save_interval import parse_every
from elastic_runtime.errors import UsageError
from elastic_runtime.trainers.batch_record import BatchRecord

# With a first letter that push_to_hub leaves alone.
_DIRECTORY = "_elastic_checkpoints"


@dataclass(frozen=True, slots=True)
class ElasticOptions:
    """What ``TrainingArguments`` do not say.

    Attributes:
        directory: where the job's checkpoints are: a path or a URL that all nodes see. None:
            ``_elastic_checkpoints`` in the ``output_dir`` of the arguments.
        every, keep, snapshot_every: see ``Checkpointer``.
        global_batch: samples in a step, over all ranks. None: ``per_device_train_batch_size`` times
            ``gradient_accumulation_steps`` times the most workers that the job may have.
        in_place: survivors of a fault go on in their processes. False: all workers start again from
            a checkpoint, which any model and strategy can do, FSDP among them.
        shadow: keep a copy of parameters and optimizer state, see ``State``.
        parts: more objects that must survive, by name, such as an average of the weights.
        start_over: see ``elastic.run``.
    """

    directory: str | os.PathLike[str] | None = None
    _: KW_ONLY
    every: Any = "30s"
    keep: int | None = 3
    snapshot_every: Any = None
    global_batch: int | None = None
    in_place: bool = True
    shadow: bool = False
    parts: dict[str, Any] = field(default_factory=dict)
    start_over: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot be, before a job is started for it.

        Raises:
            UsageError: a setting makes no sense.
        """
        parse_every(self.every)
        parse_every(self.snapshot_every, "snapshot_every")
        if self.global_batch is not None and self.global_batch < 1:
            raise UsageError(f"global_batch={self.global_batch}: give at least one sample")

    def where(self, output_dir: str | None) -> str:
        """Where the job's checkpoints are.

        Args:
            output_dir: of the ``TrainingArguments``.
        """
        return os.fspath(self.directory or os.path.join(output_dir or ".", _DIRECTORY))

    def record(self, output_dir: str | None) -> BatchRecord:
        """Where the job's global batch is written down.

        Args:
            output_dir: of the ``TrainingArguments``.
        """
        return BatchRecord(self.where(output_dir), "transformers", "global_batch")
