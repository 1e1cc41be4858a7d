"""An ``Accelerator`` for jobs whose world changes.

One is made in each process, and everything that it has prepared is kept: in another world only
what accelerate knows of the ranks is changed, and the loaders for evaluations are shared out anew.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DDPCommunicationHookType, gather_object, recursively_apply
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from elastic_runtime.accelerate import accelerate_world
from elastic_runtime.accelerate.prepared_loaders import OtherLoader, TrainingLoader
from elastic_runtime.data.sampler import ElasticBatchSampler, share_of
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context
from elastic_runtime.worker.groups.kept_ddp import ddp
from elastic_runtime.worker.round_breaks import use_breaks

# What accelerate takes from its launcher, or from an argument.
_NOT_IN_PLACE = {
    "ACCELERATE_USE_DEEPSPEED": ("deepspeed_plugin", "deepspeed_plugins"),
    "ACCELERATE_USE_FSDP": ("fsdp_plugin",),
    "ACCELERATE_USE_MEGATRON_LM": ("megatron_lm_plugin",),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("parallelism_config", "torch_tp_plugin"),
}

_made: ElasticAccelerator | None = None
_settings: dict[str, Any] = {}


def fresh_accelerator(*, in_place: bool = True, **settings: Any) -> ElasticAccelerator:
    """The ``Accelerator`` of this process, as it has to be in the present world.

    It is made by the first call; each further one gives the same. So it may be called before
    ``elastic.run``, to prepare a model once, and inside of ``train(world)``.

    Example::

        accelerator = fresh_accelerator(mixed_precision="bf16")
        model, optim, loader = accelerator.prepare(model, optim, elastic.loader(data, sampler))
        state = elastic.State(model=model, optim=optim, sampler=sampler)

        def train(world):
            for inputs, targets in loader:
                accelerator.backward(criterion(model(inputs), targets))
                optim.step()
                optim.zero_grad()
                state.commit()

        elastic.run(train, state)

    Args:
        in_place: ``elastic.run`` connects the ranks, again after each change. False: they are
            connected now, for a script that starts again from a ``Checkpointer`` after a fault.
        **settings: of ``Accelerator``.

    Raises:
        UsageError: it was made with other settings; or ranks are connected already, or settings
            are for what does not go on in place.
    """
    global _made, _settings
    if _made is None:
        _made = ElasticAccelerator(in_place=in_place, **settings)
        _settings = {"in_place": in_place, **settings}
    elif settings and {"in_place": in_place, **settings} != _settings:
        raise UsageError(
            "fresh_accelerator was called with other settings than before, and what was prepared "
            "is kept; give the same ones each time, or none after the first call"
        )
    return _made


class ElasticAccelerator(Accelerator):  # type: ignore[misc]  # accelerate has no types
    """See ``fresh_accelerator``, which makes it."""

    def __init__(self, *, in_place: bool, **settings: Any) -> None:
        """Makes it alone, for ranks that are connected later, or connects them.

        Args:
            in_place: ``elastic.run`` connects them.
            **settings: of ``Accelerator``.

        Raises:
            UsageError: settings are for what does not go on in place, or ranks are connected.
        """
        self._in_place = in_place
        self._others: list[OtherLoader] = []
        self._kept: dict[int, tuple[Any, Any]] = {}  # what was prepared, and what it became
        self._trackers_wanted: tuple[Any, ...] | None = None  # and not made yet
        if not torch.accelerator.is_available():
            # Not told that processors are meant, accelerate would let each rank train alone.
            settings = {"cpu": True, **settings}
        if not in_place:
            super().__init__(**settings)
            return
        _refuse(settings)
        AcceleratorState._reset_state(reset_partial_state=True)
        with accelerate_world.without_launcher():
            super().__init__(**settings)
        accelerate_world.own_device()
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        accelerate_world.stand_alone(int(os.environ.get("RANK", 0)), local_rank)
        self._follower = _Follower(self._others, local_rank)
        use_breaks(self._follower)
        if dist.is_initialized():  # elastic.run is under way
            self._follower.prepare(dist.get_rank(), dist.get_world_size())

    # What is prepared

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """As accelerate's; what was prepared before is given again.

        Raises:
            UsageError: a loader has no position that a job could go on from, or its micro-batches
                do not fit ``gradient_accumulation_steps``.
        """
        places: list[bool | None] = [None] * len(args)
        places[:] = device_placement or places
        # A loader of ours is no DataLoader any more, and accelerate leaves it alone.
        given = [
            self.prepare_data_loader(one, place) if _is_loader(one) else one
            for one, place in zip(args, places, strict=True)
        ]
        return super().prepare(*given, device_placement=device_placement)

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, **options: Any
    ) -> Any:
        """A loader with our sampler gives this rank its shares; others are shared out.

        Raises:
            UsageError: see ``prepare``.
        """
        known = self._known(data_loader)
        if known is not None:
            return known
        sampler = getattr(data_loader, "batch_sampler", None)
        if isinstance(sampler, ElasticBatchSampler):
            self._accumulate_as(sampler)
            on_device = self.device_placement if device_placement is None else device_placement
            device = self.device if on_device else None
            made: Any = TrainingLoader(data_loader, sampler, device, non_blocking=self.non_blocking)
        else:
            _check_evaluates(data_loader)
            share_out = super().prepare_data_loader

            def shared_out(loader: Any) -> Any:
                shared = share_out(loader, device_placement, **options)
                self._dataloaders.remove(shared)  # accelerate would keep those of all worlds
                return shared

            made = OtherLoader(data_loader, shared_out)
            self._others.append(made)
        self._keep(data_loader, made)
        self._dataloaders.append(made)
        return made

    def prepare_model(
        self,
        model: torch.nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> torch.nn.Module:
        """In place the wrapper is that of ``elastic.ddp``, which is the same in each world.

        Raises:
            UsageError: a communication hook belongs to the ranks of one world.
        """
        known = self._known(model)
        if known is not None:
            return known
        if not self._in_place:
            made = super().prepare_model(model, device_placement, evaluation_mode)
        else:
            # In its evaluation mode accelerate wraps nothing.
            made = super().prepare_model(model, device_placement, evaluation_mode=True)
            if not evaluation_mode and any(p.requires_grad for p in made.parameters()):
                made = self._models[-1] = ddp(made, **self._ddp_options())
        self._keep(model, made)
        return made

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> Any:
        """As accelerate's, once."""
        known = self._known(optimizer)
        if known is None:
            known = super().prepare_optimizer(optimizer, device_placement)
            self._keep(optimizer, known)
        return known

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """As accelerate's, but one step of it for each of the optimizer, however many ranks."""
        known = self._known(scheduler)
        if known is None:
            known = super().prepare_scheduler(scheduler)
            known.split_batches = True
            self._keep(scheduler, known)
        return known

    # What a step consists of

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """The loss is the mean over this micro-batch; it counts as much as that has samples.

        So the gradient is the mean over all samples of the step, in whichever world.

        Raises:
            UsageError: the samples come from a loader that has no position.
        """
        loader = self.gradient_state.active_dataloader
        if isinstance(loader, TrainingLoader):
            weight = loader.weight * self.gradient_state.num_steps
            loss = loss if weight == 1.0 else loss * weight
        elif loader is not None and any(one.gives(loader) for one in self._others):
            raise UsageError(
                "backward() on samples of a loader without an ElasticBatchSampler: after a change "
                f"of the world nobody knows which of them have counted; {_REMEDY}"
            )
        super().backward(loss, **options)

    def _do_sync(self) -> None:
        loader = self.gradient_state.active_dataloader
        if isinstance(loader, TrainingLoader):
            self.gradient_state._set_sync_gradients(loader.ends_step)
        else:
            super()._do_sync()

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As accelerate's; of training data, too, whose shares need not be equal."""
        loader = self.gradient_state.active_dataloader
        if isinstance(loader, TrainingLoader):
            return self._gather_shares(input_data, loader.samples, use_gather_object)
        return super().gather_for_metrics(input_data, use_gather_object)

    def _gather_shares(self, data: Any, samples: int, as_objects: bool) -> Any:
        world = self.num_processes
        bounds = [share_of(samples, rank, world) for rank in range(world)]
        shares = [end - first for first, end in bounds]
        if as_objects or not _all_tensors(data):
            own = data if shares[self.process_index] else []
            return gather_object(own)
        if len(set(shares)) == 1:
            return self.gather(data)
        rows = torch.cat(
            [torch.arange(share) + rank * shares[0] for rank, share in enumerate(shares)]
        )

        def gathered(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.ndim == 0:
                return self.gather(tensor)
            padded = tensor.new_zeros((shares[0], *tensor.shape[1:]))
            padded[: len(tensor)] = tensor
            return self.gather(padded)[rows.to(tensor.device)]

        return recursively_apply(gathered, data)

    # Trackers, and the end

    def init_trackers(self, project_name: str, *args: Any, **options: Any) -> None:
        """As accelerate's, once for all worlds; in place when rank 0 first logs something."""
        if not self._in_place:
            super().init_trackers(project_name, *args, **options)
        elif not self.trackers:
            self._trackers_wanted = (project_name, args, options)

    def log(self, values: dict[str, Any], *args: Any, **options: Any) -> None:
        """As accelerate's."""
        self._make_trackers()
        super().log(values, *args, **options)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """As accelerate's."""
        self._make_trackers()
        return super().get_tracker(name, unwrap)

    def end_training(self) -> None:
        """As accelerate's; in place the ranks stay connected, as ``elastic.run`` ends that."""
        if not self._in_place:
            super().end_training()
            return
        for tracker in self.trackers:
            tracker.finish()

    def _make_trackers(self) -> None:
        if self._trackers_wanted is not None and self.is_main_process and dist.is_initialized():
            (project_name, args, options), self._trackers_wanted = self._trackers_wanted, None
            super().init_trackers(project_name, *args, **options)

    # Inside

    def _known(self, one: Any) -> Any:
        """What has become of it earlier, or itself if it is that; None if it is new."""
        given, made = self._kept.get(id(one), (None, None))
        return made if given is one else None

    def _keep(self, given: Any, made: Any) -> None:
        self._kept[id(given)] = (given, made)
        self._kept[id(made)] = (made, made)

    def free_memory(self, *objects: Any) -> Any:
        """As accelerate's; nothing that was prepared is known any more."""
        self._kept.clear()
        self._others.clear()
        return super().free_memory(*objects)

    def _accumulate_as(self, sampler: ElasticBatchSampler) -> None:
        """Takes over from a sampler how many micro-batches a step has.

        Raises:
            UsageError: the settings say otherwise.
        """
        whole, micro = sampler.batch_sizes
        pieces, steps = -(-whole // micro), self.gradient_state.num_steps
        if steps not in (1, pieces):
            raise UsageError(
                f"gradient_accumulation_steps={steps}, and the sampler gives a batch of {whole} in "
                f"{pieces}; the batch is that of a step, over all ranks and micro-batches: "
                f"ElasticBatchSampler(data, batch_size={micro * steps}, micro_batch_size={micro})"
            )
        self.gradient_state.plugin_kwargs["num_steps"] = pieces

    def _ddp_options(self) -> dict[str, Any]:
        if self.ddp_handler is None:
            return {}
        if self.ddp_handler.comm_hook != DDPCommunicationHookType.NO:
            raise UsageError(
                "a comm_hook= belongs to the ranks of one world and does not go on in place; leave "
                "it out, or call fresh_accelerator(in_place=False, …)"
            )
        options: dict[str, Any] = self.ddp_handler.to_kwargs()
        return options


class _Follower:
    """Tells accelerate, and loaders, of each world."""

    def __init__(self, loaders: list[OtherLoader], local_rank: int) -> None:
        self._loaders, self._local_rank = loaders, local_rank

    def settle(self, *, first: bool) -> None:
        """Nothing is under way between two worlds."""

    def prepare(self, rank: int, world: int) -> None:
        """Says which ranks there are, or are about to be."""
        accelerate_world.enter(rank, world, self._local_rank)
        for loader in self._loaders:
            loader.enter()


_REMEDY = (
    "take elastic.loader(data, sampler, …) with sampler = elastic.ElasticBatchSampler(data, "
    "batch_size=…), the samples of a step over all ranks, and give the State the sampler"
)


def _is_loader(one: Any) -> bool:
    return isinstance(one, DataLoader | TrainingLoader | OtherLoader)


def _check_evaluates(loader: Any) -> None:
    """Refuses a loader that can only be one for training, and has no position.

    Raises:
        UsageError: it is.
    """
    sampler = getattr(loader, "sampler", None)
    if isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            "accelerator.prepare() got a loader of an IterableDataset, whose samples have no "
            "numbers; for training take elastic.loader(dataset, batch_size=…, at_least_once=True), "
            "which needs no prepare(); for an evaluation take a map-style data set"
        )
    if not isinstance(sampler, SequentialSampler):
        kind = type(sampler).__name__
        raise UsageError(
            f"accelerator.prepare() got a loader with a {kind}, which cannot go on in another "
            f"world; {_REMEDY}. A loader for an evaluation must not shuffle"
        )


def _all_tensors(data: Any) -> bool:
    try:
        recursively_apply(lambda tensor: tensor, data, error_on_other_type=True)
    except TypeError:
        return False
    return True


def _refuse(settings: dict[str, Any]) -> None:
    """Refuses what cannot go on in place.

    Raises:
        UsageError: there is something.
    """
    if dist.is_initialized() and not context().in_place:
        raise UsageError(
            "ranks are connected already; in place elastic.run connects them: call "
            "fresh_accelerator() before anything that connects, or with in_place=False"
        )
    for variable, names in _NOT_IN_PLACE.items():
        asked = [name for name in names if settings.get(name) is not None]
        asked += [variable] if os.environ.get(variable, "").lower() == "true" else []
        if asked:
            raise UsageError(
                f"{asked[0]} does not go on in place; call fresh_accelerator(in_place=False, …) "
                "and let the job start again from a Checkpointer, without elastic.run"
            )
