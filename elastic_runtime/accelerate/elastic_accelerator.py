"""An ``Accelerator`` for jobs whose world changes.

One is made in each process, and everything that it has prepared is kept: in another world only
what accelerate knows of the ranks is changed, and the loaders for evaluations are shared out anew.
"""

from __future__ import annotations

import os
import weakref
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DDPCommunicationHookType
from torch.utils.data import DataLoader

import elastic_runtime as elastic
from elastic_runtime.accelerate import accelerate_world
from elastic_runtime.accelerate.evaluation_loader import EvaluationLoader
from elastic_runtime.accelerate.refusals import (
    ACCUMULATES,
    COMM_HOOK,
    LOADS_IN_TRAIN,
    NO_POSITION,
    OTHER_SETTINGS,
    SKIPS,
    check_evaluates,
    check_in_place,
)
from elastic_runtime.accelerate.uneven_gather import gather_rows
from elastic_runtime.accelerate.world_follower import WorldFollower
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context
from elastic_runtime.worker.groups.kept_ddp import ddp
from elastic_runtime.worker.round_breaks import use_breaks

_LOADERS = (DataLoader, EvaluationLoader)
_PLAIN = (str, int, float, bool, type(None))

_made: ElasticAccelerator | None = None
_settings: dict[str, Any] = {}


def fresh_accelerator(*, in_place: bool = True, **settings: Any) -> ElasticAccelerator:
    """The ``Accelerator`` of this process, as it has to be in the present world.

    It is made by the first call; each further one gives the same. So it may be called before
    ``elastic.run``, to prepare a model once, and inside of ``train(world)``.

    Example::

        loader = elastic.DataLoader(data, global_batch_size=64)
        accelerator = fresh_accelerator(mixed_precision="bf16")
        model, optim = accelerator.prepare(model, optim)
        state = elastic.State(model=model, optim=optim, loader=loader)

        def train(world):
            for step in loader.steps(epochs=10):
                for inputs, targets in step:
                    loss = criterion(model(inputs), targets)
                    accelerator.backward(loss * step.weight)
                optim.step()
                optim.zero_grad()
                state.commit()

        elastic.run(train, state)

    Args:
        in_place: ``elastic.run`` connects the ranks, again after each change. False: they are
            connected now, for ``elastic.run(…, in_place=False)`` or ``state.resumed()``.
        **settings: of ``Accelerator``.

    Raises:
        UsageError: it was made with other settings; or ranks are connected already, or settings
            are for what does not go on in place.
    """
    global _made, _settings
    # accelerate counts in some of the objects that it is given.
    asked = {n: v if isinstance(v, _PLAIN) else type(v).__name__ for n, v in settings.items()}
    if _made is None:
        _made, _settings = ElasticAccelerator(in_place=in_place, **settings), asked
    elif (asked and asked != _settings) or (_made.goes_on_in_place and not in_place):
        raise UsageError(OTHER_SETTINGS)
    return _made


class ElasticAccelerator(Accelerator):  # type: ignore[misc]  # accelerate has no types
    """See ``fresh_accelerator``, which makes it.

    Attributes:
        goes_on_in_place: ``elastic.run`` connects the ranks.
    """

    def __init__(self, *, in_place: bool, **settings: Any) -> None:
        """Makes it alone, for ranks that are connected later, or connects them.

        Args:
            in_place: ``elastic.run`` connects them.
            **settings: of ``Accelerator``.

        Raises:
            UsageError: settings are for what does not go on in place, or ranks are connected.
        """
        self.goes_on_in_place = in_place
        self._loaders: weakref.WeakSet[EvaluationLoader] = weakref.WeakSet()
        self._kept: dict[int, tuple[Any, Any]] = {}  # what was prepared, and what it became
        self._of_world: list[Any] = []  # loaders that train() has prepared
        self._trackers_wanted: tuple[Any, ...] | None = None  # and not made yet
        if not torch.accelerator.is_available():
            # Not told that processors are meant, accelerate would let each rank train alone.
            settings = {"cpu": True, **settings}
        if in_place:
            self._make_alone(settings)
        else:
            super().__init__(**settings)
        if self.gradient_state.num_steps != 1:
            raise UsageError(ACCUMULATES)

    def _make_alone(self, settings: dict[str, Any]) -> None:
        check_in_place(settings)
        AcceleratorState._reset_state(reset_partial_state=True)
        with accelerate_world.without_launcher():
            super().__init__(**settings)
        accelerate_world.own_device()
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        accelerate_world.stand_alone(int(os.environ.get("RANK", 0)), local_rank)
        leave = weakref.WeakMethod(self._leave_world)

        def left() -> None:
            if (forget := leave()) is not None:
                forget()

        self._follower = WorldFollower(self._loaders, left, local_rank)
        use_breaks(self._follower)
        if dist.is_initialized():  # elastic.run is under way
            self._follower.prepare(dist.get_rank(), dist.get_world_size())

    # What is prepared

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """As accelerate's; what was prepared before is given again.

        A loader of ours needs no preparation, and is given back as it is.

        Raises:
            UsageError: a loader could only be one for training, and is not ours.
        """
        # A loader of ours is no DataLoader any more, and accelerate leaves it alone.
        given = [
            self.prepare_data_loader(one, place) if isinstance(one, _LOADERS) else one
            for one, place in zip_longest(args, (device_placement or ())[: len(args)])
        ]
        return super().prepare(*given, device_placement=device_placement)

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, **options: Any
    ) -> Any:
        """A loader for evaluations, which is shared out in each world anew.

        Raises:
            UsageError: see ``prepare``.
        """
        known = self._known(data_loader)
        if known is not None:
            return known
        check_evaluates(data_loader)
        share_out = super().prepare_data_loader

        def shared_out(loader: Any) -> Any:
            shared = share_out(loader, device_placement, **options)
            self._dataloaders.remove(shared)  # accelerate would keep those of all worlds
            return shared

        made = EvaluationLoader(data_loader, shared_out)
        self._keep(data_loader, made)
        self._loaders.add(made)
        self._dataloaders.append(made)
        if context().in_place:
            self._of_world += [data_loader, made]
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
        if not self.goes_on_in_place:
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
        """As accelerate's; the loss is one that ``step.weight`` was multiplied with.

        Raises:
            UsageError: the samples come from a loader that has no position.
        """
        active = self.gradient_state.active_dataloader
        if any(one.gives(active) for one in self._loaders):
            raise UsageError(NO_POSITION)
        super().backward(loss, **options)

    def gather(self, tensor: Any) -> Any:
        """As accelerate's; of training data, too, of which ranks may have unequal shares."""
        if self.gradient_state.active_dataloader is None:
            return gather_rows(tensor, self.num_processes)
        return super().gather(tensor)

    # What is not needed

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """As accelerate's, for evaluations.

        Raises:
            UsageError: it is a loader of ours, which begins where the job is.
        """
        if isinstance(dataloader, elastic.DataLoader):
            raise UsageError(SKIPS)
        if isinstance(dataloader, EvaluationLoader):
            dataloader = dataloader.of_rank()
        return super().skip_first_batches(dataloader, num_batches)

    def load_state(self, input_dir: str | None = None, *args: Any, **options: Any) -> None:
        """As accelerate's, to begin with what it has saved.

        Raises:
            UsageError: it is called inside of ``train``, where the job is at another step.
        """
        if self.goes_on_in_place and context().in_place:
            raise UsageError(LOADS_IN_TRAIN)
        super().load_state(input_dir, *args, **options)

    # Trackers, and the end

    def init_trackers(self, project_name: str, *args: Any, **options: Any) -> None:
        """As accelerate's, once for all worlds; in place when rank 0 first logs something."""
        if not self.goes_on_in_place:
            super().init_trackers(project_name, *args, **options)
        elif not self.trackers:
            self._trackers_wanted = (project_name, args, options)

    def log(self, values: dict[str, Any], *args: Any, **options: Any) -> None:
        """As accelerate's; before ``elastic.run`` nobody knows who is rank 0, and nobody logs."""
        self._make_trackers()
        super().log(values, *args, **options)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """As accelerate's."""
        self._make_trackers()
        return super().get_tracker(name, unwrap)

    def end_training(self) -> None:
        """As accelerate's; in place the ranks stay connected, as ``elastic.run`` ends that."""
        if not self.goes_on_in_place:
            super().end_training()
            return
        for tracker in self.trackers:
            tracker.finish()

    def _make_trackers(self) -> None:
        known = dist.is_initialized() or context().was_in_place
        if self._trackers_wanted is not None and self.is_main_process and known:
            (project_name, args, options), self._trackers_wanted = self._trackers_wanted, None
            super().init_trackers(project_name, *args, **options)

    # Inside

    def free_memory(self, *objects: Any) -> Any:
        """As accelerate's; nothing that was prepared is known any more."""
        self._kept.clear()
        self._of_world.clear()
        return super().free_memory(*objects)

    def _known(self, one: Any) -> Any:
        """What has become of it earlier, or itself if it is that; None if it is new."""
        given, made = self._kept.get(id(one), (None, None))
        return made if given is one else None

    def _keep(self, given: Any, made: Any) -> None:
        self._kept[id(given)] = (given, made)
        self._kept[id(made)] = (made, made)

    def _leave_world(self) -> None:
        """Forgets the loaders that ``train`` has made: it will make others."""
        for loader in self._of_world:
            self._kept.pop(id(loader), None)
            self._dataloaders[:] = [one for one in self._dataloaders if one is not loader]
        self._of_world.clear()

    def _ddp_options(self) -> dict[str, Any]:
        if self.ddp_handler is None:
            return {}
        if self.ddp_handler.comm_hook != DDPCommunicationHookType.NO:
            raise UsageError(COMM_HOOK)
        options: dict[str, Any] = self.ddp_handler.to_kwargs()
        return options
