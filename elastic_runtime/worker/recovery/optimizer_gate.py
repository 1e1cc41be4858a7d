"""Holds each optimizer back until it is certain that the gradients it is to use are whole.

On a GPU a collective is only queued when its call returns, and so is what follows it. The abort
that releases a rank from a collective lets the queue run on, over gradients of which parts never
came. So the host waits for the queue *before* it lets an optimizer add to it, and only then looks
whether the round has been interrupted in the meantime: an interrupt is noted before it aborts.

On the CPU a collective that fails raises where it is called; nothing is waited for there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.system import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable


class Device(Protocol):
    """What runs collectives and kernels later than they are called."""

    def in_use(self) -> bool:
        """Whether anything is queued at all: False where all work is done when its call returns."""

    def collectives(self) -> int | None:
        """How many collectives were queued so far in this round; None if that is not known."""

    def refuse_recording(self) -> None:
        """Refuses what is only recorded now, and will run later without the runtime's knowledge.

        Raises:
            UsageError: an optimizer's kernels would be recorded.
        """

    def wait(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Waits for all that is queued: ahead of an optimizer's kernels, or everywhere.

        Args:
            optimizer: the one that is about to queue its kernels; None for all that there is.
        """


class OptimizerGate:
    """Makes optimizers and commits of a round wait until the collectives before them are done."""

    def __init__(self, check: Callable[[], None], device: Device | None = None) -> None:
        """Takes what tells whether the round is still whole.

        Args:
            check: raises if the groups of the round have been aborted, or failed.
            device: that of the gradients; CUDA if none is given.
        """
        self._check = check
        self._device: Device = device or _Cuda()
        self._arrived = -1  # how many collectives had succeeded at the last check
        self._ran: set[int] = set()  # the optimizers of the present step, by id

    @property
    def certain(self) -> bool:
        """Whether all collectives called so far had succeeded at the last check."""
        if not self._device.in_use():
            return True
        return self._arrived >= 0 and self._device.collectives() == self._arrived

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Returns when all that an optimizer is about to use is there.

        A second optimizer that has no collective of its own uses the results that the first one
        has waited for. It is not stopped, as the step would be half done without it. The first one
        of a step always waits: collectives in a CUDA graph are not counted when it is replayed. One
        that comes again, without a commit in between, begins another step.

        Raises:
            UsageError: the optimizer would be recorded into a CUDA graph.
            BaseException: what ``check`` raises; the optimizer has changed nothing then.
        """
        if not self._device.in_use():
            return
        self._device.refuse_recording()
        if id(optimizer) in self._ran:
            self._ran.clear()
        if not (self._ran and self.certain):
            self._pass(optimizer)
        self._ran.add(id(optimizer))

    def before_commit(self) -> None:
        """Waits for the GPU: a collective that failed must show before the step counts.

        Raises:
            BaseException: what ``check`` raises; there was a collective after the last optimizer,
                and what it gave may be worth nothing.
        """
        if not self._device.in_use():
            return
        # Without an optimizer that has waited (State(shadow=True)) this is the only look; after one
        # an interrupt that comes now would condemn a step that is good.
        if self._ran and self.certain:
            self._device.wait(None)
        else:
            self._pass(None)
        self._ran.clear()

    def _pass(self, optimizer: torch.optim.Optimizer | None) -> None:
        queued = self._device.collectives()
        self._device.wait(optimizer)
        # In this order: an abort that comes after the look finds the queue empty.
        self._check()
        self._arrived = -1 if queued is None else queued


class _Cuda:
    """The GPUs of this process, with NCCL."""

    def __init__(self) -> None:
        self._devices: dict[int, list[torch.device]] = {}
        self._built = torch.backends.cuda.is_built()

    def in_use(self) -> bool:
        return self._built and bool(torch.cuda.is_initialized())

    def collectives(self) -> int | None:
        return torch_private.nccl_collectives()

    def refuse_recording(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise UsageError(
                "an optimizer inside a CUDA graph runs without the runtime's knowledge when "
                "the graph is replayed, and so cannot be undone; capture forward and backward "
                "only, or take State(shadow=True)"
            )

    def wait(self, optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is None:
            torch.cuda.synchronize()
            return
        for device in self._devices_of(optimizer):
            # The stream that is about to get the optimizer's kernels: what is queued on it has
            # been made to wait for the collectives, by DDP or another caller.
            torch.cuda.current_stream(device).synchronize()

    def _devices_of(self, optimizer: torch.optim.Optimizer) -> list[torch.device]:
        known = self._devices.get(id(optimizer))
        if known is None:
            held = {p.device for group in optimizer.param_groups for p in group["params"]}
            known = [device for device in held if device.type == "cuda"]
            self._devices[id(optimizer)] = known
        return known
