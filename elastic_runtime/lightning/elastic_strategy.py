"""``ElasticStrategy``: Lightning's DDP strategy, for ranks that come and go."""

from __future__ import annotations

import difflib
import inspect
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy, Strategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.fit_job import FitJob
from elastic_runtime.lightning.prepare_data import prepare_data_in_turn
from elastic_runtime.lightning.reports.rank_zero_reports import set_rank_zero
from elastic_runtime.trainers.trainer_job import JobSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_runtime.worker.world import World


class ElasticStrategy(DDPStrategy):  # type: ignore[misc]  # Lightning is not typed here
    """Trains in place: what survives a fault goes on with its memory, and no step is lost.

    Example::

        trainer = Trainer(strategy=ElasticStrategy("runs/x", every="30s"), max_epochs=10)
        trainer.fit(module, DataLoader(data, batch_size=32, shuffle=True))

    The training ``DataLoader`` is given a sampler of ours. Its ``batch_size``, times
    ``Trainer(devices=)`` times ``Trainer(num_nodes=)`` as they are written, is the global batch,
    which is fixed for the job: with more or fewer ranks each has a smaller or larger share of it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        every: Any = "30s",
        keep: int | None = 3,
        snapshots: Any = None,
        global_batch: int | None = None,
        seed: int | None = None,
        shadow: bool | None = None,
        parts: Mapping[str, Any] | None = None,
        start_over: bool = False,
        **ddp: Any,
    ) -> None:
        """Takes the settings; nothing is read or written before ``fit``.

        Args:
            directory: where the job's checkpoints are: a path or a URL that all nodes see. None:
                ``elastic_checkpoints`` in the trainer's ``default_root_dir``.
            every, keep, snapshots: see ``State.checkpoints``.
            global_batch: samples in a batch of all ranks, if it shall not be decided by the
                loader's ``batch_size``; with accumulated gradients, of one micro-batch.
            seed: of the order of samples; None: that of ``seed_everything``, or 0.
            shadow: keep a copy of parameters and optimizer state, see ``State``. None: where it is
                needed: with manual optimization, and with ``LBFGS``.
            parts: more objects that must survive, by name, such as an average of the weights.
            start_over: see ``elastic.run``.
            **ddp: options of Lightning's ``DDPStrategy`` and torch's ``DistributedDataParallel``.

        Raises:
            UsageError: a setting makes no sense.
        """
        refuse_unknown(ddp)
        super().__init__(**ddp)
        self._directory, self._seed = directory, seed
        self._settings = JobSettings(
            every=every,
            keep=keep,
            snapshots=snapshots,
            global_batch=global_batch,
            shadow=shadow,
            parts=parts or {},
            start_over=start_over,
        )
        self._own_forward: Any = None
        self._written_nodes = 1

    # What Lightning asks

    @property
    def num_nodes(self) -> int:
        """The nodes of the present world; before there is one those of ``Trainer(num_nodes=)``."""
        return self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        self._num_nodes = self._written_nodes = num_nodes

    @property
    def root_device(self) -> torch.device:
        """Of this worker, also where ``Trainer(devices=)`` speaks of one."""
        devices = self.parallel_devices
        assert devices
        if self.local_rank < len(devices) or devices[0].type == "cpu":
            return devices[min(self.local_rank, len(devices) - 1)]
        return torch.device(devices[0].type, self.local_rank)

    @property
    def world_size(self) -> int:
        """The ranks that are connected now; outside of the training loop this one alone."""
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """For data of evaluations, which are split over the ranks of the moment."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        return {"num_replicas": self.world_size, "rank": rank}

    def set_world_ranks(self) -> None:
        """Tells Lightning which rank this process is."""
        set_rank_zero(self.global_rank)

    def _configure_launcher(self) -> None:
        """Launches nothing: elastic-run has started this process."""

    def setup_environment(self) -> None:
        """Prepares the device and, for ``fit``, the loops; ranks are connected by those."""
        Strategy.setup_environment(self)
        reset_seed()  # as all of Lightning's own strategies for several processes
        self.set_world_ranks()
        module = self.lightning_module
        trainer = module.trainer
        if trainer.state.fn == TrainerFn.FITTING:
            reference = self.num_processes * self._written_nodes
            job = FitJob(
                trainer, self._directory, self._settings, self._seed, reference, strategy=self
            )
            if reference > 1 and "RANK" not in os.environ:
                rank_zero_warn(
                    "no launcher has started this process, and it trains alone, with the batches "
                    f"of {reference} workers: elastic-run --nproc-per-node {self.num_processes} …"
                )
            prepare_data_in_turn(trainer, job.directory)

    def setup(self, trainer: Any) -> None:
        """As of a strategy with one process: the model is wrapped when ranks are connected."""
        if trainer.state.fn == TrainerFn.FITTING and self._layer_sync:
            self.model = self._layer_sync.apply(self.lightning_module)
        Strategy.setup(self, trainer)
        self._own_forward = vars(self.lightning_module).get("forward")

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **options: Any,
    ) -> Any:
        """Steps an optimizer after the backward pass, not around it.

        A fault in the backward pass, where ranks wait for each other, then finds parameters that
        are still those of the last commit.
        """
        if isinstance(optimizer, torch.optim.LBFGS):
            return super().optimizer_step(optimizer, closure, model, **options)
        result = closure()
        return super().optimizer_step(optimizer, lambda: result, model, **options)

    # What the job asks

    def enter(self, world: World) -> None:
        """Another world begins: the model is wrapped for its ranks.

        Args:
            world: that.
        """
        self._num_nodes = world.nodes
        self.set_world_ranks()
        module = self.lightning_module
        # A fault between DDP's forward pass and the module's leaves this redirected.
        module.__dict__.pop("forward", None)
        if self._own_forward is not None:
            module.forward = self._own_forward
        options: dict[str, Any] = {
            **self._ddp_kwargs,
            "device_ids": self.determine_ddp_device_ids(),
        }
        self.model = elastic.ddp(module, **options)
        self._register_ddp_hooks()

    def leave(self) -> None:
        """The world has ended: outside of one the module is used as it is."""
        self.model = self.lightning_module


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuses a misspelt option at once: torch would see it when the ranks are connected.

    Args:
        options: what is passed on to Lightning and torch.

    Raises:
        UsageError: neither knows one of them.
    """
    makers = (ElasticStrategy, DDPStrategy, DistributedDataParallel)
    known = {name for maker in makers for name in inspect.signature(maker).parameters}
    for name in options.keys() - known:
        close = difflib.get_close_matches(name, known, 1)
        raise UsageError(
            f"ElasticStrategy has no {name}=" + (f"; did you mean {close[0]}=?" if close else "")
        )


StrategyRegistry.register(
    "elastic", ElasticStrategy, description="in place on elastic-run: ranks may come and go"
)
