"""``elastic.ddp``: one ``DistributedDataParallel`` object for all rounds.

torch's own survives a change of its group's peers, but not beside a rank that is new: after its
first backward pass it sorts its buckets anew and exchanges the order with all ranks, once; a rank
that joins later does so when the others do not, and all wait for each other (tried with torch
2.15). So the object is set up again in each round, which takes about a millisecond, and keeps its
identity: what refers to it, such as a trainer, need not be built again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elastic_runtime.errors import UsageError
from elastic_runtime.system import torch_private
from elastic_runtime.worker.context import context
from elastic_runtime.worker.pieces import is_last_piece

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

# Before the first round.
_NEVER = -1

# By the identity of the model, which its wrapper keeps alive.
_wrappers: dict[int, KeptDDP] = {}


def ddp(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """Wraps a model in ``DistributedDataParallel``, and gives the same wrapper in every round.

    It may be called inside of ``train`` or before ``elastic.run``; the wrapper can be used inside
    of ``train``. It meets the other ranks when it is first used with gradients, as they do: a rank
    may make it for an evaluation of its own.

    Args:
        model: the same module each time.
        options: those of ``DistributedDataParallel``; in place ``init_sync`` is False where they do
            not say otherwise, as all ranks have the same state already.

    Raises:
        UsageError: an option cannot be set up twice.
    """
    if isinstance(model, DistributedDataParallel):
        raise UsageError("elastic.ddp makes a DistributedDataParallel; give it the model in it")
    if options.get("mixed_precision") is not None:
        raise UsageError(
            "elastic.ddp cannot use mixed_precision=, which leaves hooks in the model for each "
            "round; use torch.autocast"
        )
    wrapper = _wrappers.get(id(model))
    if wrapper is None:
        wrapper = _wrappers[id(model)] = KeptDDP(model, options)
    else:
        wrapper.take(options)
    return wrapper


class KeptDDP(DistributedDataParallel):  # type: ignore[misc]  # torch has no types
    """A ``DistributedDataParallel`` that is set up again when it is first used in a round."""

    def __init__(self, module: torch.nn.Module, options: dict[str, Any]) -> None:
        torch.nn.Module.__init__(self)
        self.module = module
        self._elastic_options = options
        self._elastic_round = _NEVER

    def take(self, options: dict[str, Any]) -> None:
        """Has these options from now on."""
        if options != self._elastic_options:
            self._elastic_options, self._elastic_round = options, _NEVER

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """As the model's; gradients are reduced with the last piece of a step.

        Without gradients, and after ``elastic.run``, it is the model itself.
        """
        alone = context().was_in_place and not dist.is_initialized()
        # In an evaluation there is nothing to reduce, and a rank may make it alone: the buffers
        # that are given to all before each step would wait for the others.
        if alone or not torch.is_grad_enabled():
            return self.module(*inputs, **named)
        self._set_up()
        if is_last_piece():
            return super().forward(*inputs, **named)
        with super().no_sync():
            return super().forward(*inputs, **named)

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulates gradients within the block."""
        self._set_up()
        context_manager: AbstractContextManager[None] = super().no_sync()
        return context_manager

    def join(self, *args: Any, **named: Any) -> Any:
        """For ranks with uneven inputs."""
        self._set_up()
        return super().join(*args, **named)

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Reduces gradients by ``hook`` in this round.

        What a hook remembers belongs to the ranks of one round: a new rank does not have it.
        """
        self._set_up()
        super().register_comm_hook(state, hook)

    def __getstate__(self) -> Any:
        """For copies and pickles.

        Raises:
            UsageError: it is not set up yet.
        """
        if self._elastic_round == _NEVER:
            raise UsageError(
                "what elastic.ddp has wrapped cannot be copied or saved before it is used in "
                "train(world); copy or save the model itself"
            )
        return super().__getstate__()

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types
    def _set_up(self) -> None:
        if not dist.is_initialized():
            raise UsageError(
                "what elastic.ddp or fresh_accelerator().prepare has wrapped can be used inside of "
                "train(world) only, as no other ranks are connected before elastic.run(train, "
                "state); move the loop there, or use the model itself, which is its .module"
            )
        now = context().round
        same_group = "process_group" in self._elastic_options or (
            vars(self).get("process_group") is dist.group.WORLD
        )
        if self._elastic_round == now and same_group:
            return
        hooks = torch_private.module_hooks(self)
        module, training, options = self.module, self.training, self._elastic_options
        # The script may use it first in an evaluation.
        with torch.inference_mode(False), torch.enable_grad():
            # In place all ranks have the same state before they train.
            super().__init__(module, **{"init_sync": not context().in_place, **options})
        self.__dict__.update(hooks, training=training)
        self._elastic_options, self._elastic_round = options, now
