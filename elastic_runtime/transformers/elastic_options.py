"""How an elastic ``Trainer`` is saved and goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from elastic_runtime.trainers.batch_record import BatchRecord
from elastic_runtime.trainers.trainer_job import JobSettings

# With a first letter that push_to_hub leaves alone.
_DIRECTORY = "_elastic_checkpoints"


@dataclass(frozen=True, slots=True)
class ElasticOptions(JobSettings):
    """What ``TrainingArguments`` do not say.

    Attributes:
        directory: where the job's checkpoints are: a path or a URL that all nodes see. None:
            ``_elastic_checkpoints`` in the ``output_dir`` of the arguments.
        in_place: survivors of a fault go on in their processes. False: all workers start again from
            a checkpoint, which any model and strategy can do, FSDP among them.
        every, keep, snapshots: see ``State.checkpoints``.
        global_batch: samples in a step, over all ranks. None: ``per_device_train_batch_size`` times
            ``gradient_accumulation_steps`` times the most workers that the job may have.
        shadow: keep a copy of parameters and optimizer state, see ``State``.
        parts: more objects that must survive, by name, such as an average of the weights.
        start_over: see ``elastic.run``.

    Raises:
        UsageError: a setting makes no sense.
    """

    directory: str | os.PathLike[str] | None = None
    in_place: bool = field(default=True, kw_only=True)

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
