"""A stand-in for a GPU: its work runs later, and an abort lets it run on over garbage."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

GARBAGE = float("nan")


class QueuedDevice:
    """One stream of work, on memory of the host.

    Kernels and collectives are queued. A collective blocks the queue until the peer has come, or
    until an abort releases it: then its tensor is undefined, and the queue runs on as if nothing
    had happened, as NCCL's does.
    """

    def __init__(self) -> None:
        self.aborted = False
        self.count = 0  # of collectives that were queued
        self.recording = False  # what is called is not run, but recorded
        self.when_blocked: Callable[[], None] = self._nobody_comes
        self._queue: deque[Callable[[], None]] = deque()
        self._peer_came = False

    # What a script calls

    def kernel(self, work: Callable[[], None]) -> None:
        """Queues work."""
        self._queue.append(work)

    def all_reduce(self, tensor: torch.Tensor, whole: float) -> None:
        """Queues a collective that will fill a tensor with ``whole``, if all ranks take part."""
        self.count += 1
        self.replay_reduce(tensor, whole)

    def replay_reduce(self, tensor: torch.Tensor, whole: float) -> None:
        """The same from a CUDA graph: nobody counts it."""

        def reduce() -> None:
            if not (self.aborted or self._peer_came):
                self.when_blocked()
            tensor.fill_(GARBAGE if self.aborted else whole)
            self._peer_came = False

        self._queue.append(reduce)

    # What happens to it

    def peer_comes(self) -> None:
        """The other rank takes part in the next collective."""
        self._peer_came = True

    def abort(self) -> None:
        """Another thread ends all groups."""
        self.aborted = True

    # What a gate asks

    def in_use(self) -> bool:
        return True

    def collectives(self) -> int | None:
        return self.count

    def refuse_recording(self) -> None:
        if self.recording:
            raise UsageError("an optimizer would be recorded")

    def wait(self, optimizer: torch.optim.Optimizer | None) -> None:
        while self._queue:
            self._queue.popleft()()

    def _nobody_comes(self) -> None:
        raise AssertionError("the host waits for a collective that nobody ends")


class QueuedSGD(torch.optim.Optimizer):
    """Plain gradient descent whose kernel runs later."""

    def __init__(self, parameters: list[torch.nn.Parameter], device: QueuedDevice) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self.device = device

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.device.kernel(lambda p=parameter: p.data.sub_(p.grad))
