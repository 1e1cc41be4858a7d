"""A ``Trainer`` of torchtitan's that trains the same in a world of any size.

The global batch is fixed for the job, and the ranks of the present world share its sequences out;
the data-parallel degree follows the world. What is saved and when: ``checkpoint_manager``.
"""

# No ``from __future__ import annotations``: what reads the command line looks at the types.
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtitan.tools.logging import logger
from torchtitan.trainer import Trainer

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.messages import ENV_MOST_WORKERS
from elastic_runtime.torchtitan.sharing_loader import ElasticDataLoader
from elastic_runtime.torchtitan.stream_shares import StreamShares  # noqa: TC001
from elastic_runtime.torchtitan.world_degrees import Degrees

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object  # whatever trainer it comes before


class ElasticMixin(_Base):  # type: ignore[misc,valid-type]  # torchtitan has no types
    """For a subclass of ``Trainer``: named first among its bases.

    Attributes:
        global_batch: sequences in a step, over all ranks, in any world.
    """

    global_batch: int

    def __init__(self, config: Any) -> None:
        """Builds everything for the present world.

        Args:
            config: of the ``Trainer``.

        Raises:
            UsageError: the world cannot be laid out as the config asks for, or the data cannot be
                shared out anew.
        """
        self._written = config.training.global_batch_size
        self._told: StreamShares | None = None
        try:
            super().__init__(config)
        finally:
            config.training.global_batch_size = self._written
        loader = self.dataloader
        if not isinstance(loader, ElasticDataLoader):
            raise UsageError(
                f"{type(self).__name__} needs a loader that shares out its data anew, and this one "
                f"is a {type(loader).__name__}; make the config with "
                "elastic_runtime.torchtitan.elastic"
            )
        loader.saves = _first_of_its_data(self.parallel_dims)
        if self._written > 0 or not self.checkpointer.enable:
            self.plan_steps()
        if getattr(self, "validator", None) is not None:
            self._announce_validation()

    def init_distributed(self) -> Any:
        """Lays out the ranks, and finds out how large a global batch is.

        Raises:
            UsageError: the world cannot be laid out so.
        """
        config = self.config
        asked = _degrees(config.parallelism)
        world = int(os.environ.get("WORLD_SIZE", 1))
        _check(config.training)
        config.parallelism.data_parallel_replicate_degree = asked.fitted(world).replicate
        dims = super().init_distributed()
        training = config.training
        self.global_batch = self._written
        if self._written < 0:
            most = int(os.environ.get(ENV_MOST_WORKERS) or world)
            self.global_batch = training.local_batch_size * asked.data_ranks(most)
        # torchtitan wants one that divides evenly, and is given one; the loader has the true one.
        here = training.local_batch_size * dims.dp_replicate * dims.dp_shard
        training.global_batch_size = -(-self.global_batch // here) * here
        return dims

    def train(self) -> None:
        """Trains to the end, from wherever the job is.

        Raises:
            SystemExit: the job was asked to stop, and has saved.
        """
        self.checkpointer.run(super().train)

    def plan_steps(self) -> None:
        """Shares out the sequences of a step; to be called before the first one.

        If the config names no global batch, a checkpoint may, so that it is called after the load.

        Raises:
            UsageError: they cannot be shared out.
        """
        local = self.config.training.local_batch_size
        shares = self.dataloader.plan(self.global_batch, local)
        self.gradient_accumulation_steps = shares.micro_batches
        if shares != self._told:
            logger.info(f"elastic: {shares}")
        self._told = shares

    def go_on(self, saved_global_batch: int) -> None:
        """Takes over the global batch of the steps that were made, if the config names none.

        Args:
            saved_global_batch: sequences in a step, as a checkpoint says.

        Raises:
            UsageError: the data cannot be shared out so.
        """
        if self._written < 0:
            self.global_batch = saved_global_batch
        self.plan_steps()

    def _announce_validation(self) -> None:
        """No step is expected meanwhile, however long it takes."""
        validate = self.validator.validate

        def announced(*given: Any, **named: Any) -> Any:
            with elastic.busy("validation"):
                return validate(*given, **named)

        self.validator.validate = announced


class ElasticTrainer(ElasticMixin, Trainer):  # type: ignore[misc]
    """torchtitan's ``Trainer`` in an elastic job."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):  # type: ignore[misc]
        """The same fields; ``elastic_runtime.torchtitan.elastic`` makes one of another config."""


def _degrees(parallelism: Any) -> Degrees:
    return Degrees(
        model=parallelism.tensor_parallel_degree
        * parallelism.context_parallel_degree
        * parallelism.pipeline_parallel_degree,
        shard=parallelism.data_parallel_shard_degree,
        replicate=parallelism.data_parallel_replicate_degree,
    )


def _check(training: Any) -> None:
    if training.local_batch_size < 1 or not (
        training.global_batch_size > 0 or training.global_batch_size == -1
    ):
        raise UsageError(
            f"--training.local_batch_size {training.local_batch_size} and "
            f"--training.global_batch_size {training.global_batch_size} are sequences: give at "
            "least 1 of each, or leave the second one out"
        )


def _first_of_its_data(dims: Any) -> bool:
    """Whether this rank is the first of those that read the same data."""
    meshes = (dims.get_optional_mesh(name) for name in ("pp", "cp", "tp"))
    return all(mesh is None or mesh.get_local_rank() == 0 for mesh in meshes)
