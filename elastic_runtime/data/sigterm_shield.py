"""Keeps the processes of a ``DataLoader`` alive when a whole job gets a SIGTERM."""

from __future__ import annotations

import atexit
import os
import signal
import time
import weakref
from typing import TYPE_CHECKING, Any

from elastic_runtime.system import torch_private
from elastic_runtime.system.repeated_signals import StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader


def end_with_program(loader: DataLoader[Any]) -> None:
    """Ends a loader's processes by a message when the program ends.

    Otherwise ``multiprocessing`` would send them a SIGTERM, and wait for them.
    """
    weak = weakref.ref(loader)

    def end() -> None:
        if (there := weak()) is not None:
            torch_private.end_loader(there)

    atexit.register(end)


class Shielded:
    """Lets a loader's process outlive a SIGTERM, as its worker still needs it.

    Slurm and others signal a whole tree of processes. The worker continues to the step at which all
    ranks leave, and ends its loader then. A later SIGTERM ends the process: that is how torch ends
    one that does not follow its worker into its end.

    Args:
        then: the user's ``worker_init_fn``, which may do otherwise; None: there is none.
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self._then = then
        self._request: StopRequest | None = None

    def __call__(self, worker: int) -> None:
        """Takes effect in the process that it is called in, a loader's."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if self._then is not None:
            self._then(worker)

    def _on_sigterm(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self._request is None:
            self._request = StopRequest(number, now)
        elif not self._request.repeated_by(number, now):
            os._exit(0)  # with another code, the worker would be told that its loader has failed
