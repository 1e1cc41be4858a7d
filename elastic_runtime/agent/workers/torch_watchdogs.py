"""torch's two watchdogs, as torchrun offers them: the file timer and the health check port.

Both are switched on by environment variables of torch's and are off by default:
``TORCHELASTIC_ENABLE_FILE_TIMER=1`` (workers may set timers that kill them when they expire) and
``TORCHELASTIC_HEALTH_CHECK_PORT`` (a port on which a supervisor asks whether the agent is alive).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic import timer
from torch.distributed.elastic.agent.server.health_check_server import create_healthcheck_server
from torch.distributed.elastic.agent.server.local_elastic_agent import (
    TORCHELASTIC_ENABLE_FILE_TIMER,
    TORCHELASTIC_TIMER_FILE,
)

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_HEALTH_TIMEOUT = 60
_CHECK_EVERY = 0.1


class Watchdogs:
    """Starts what the environment asks for.

    Args:
        run_id: of the job; timers of other jobs are not ours.
        runtime_dir: a private folder for the timers' pipe, if the user named none.
        health_port: torchrun's health check port; 0 means none.
        alive: seconds since the epoch when the agent's main loop last ran.
    """

    def __init__(
        self, run_id: str, runtime_dir: str, health_port: int, alive: Callable[[], float]
    ) -> None:
        self._run_id = run_id
        self._alive = alive
        self._timer: Any = None
        self._health: Any = None
        self._wants_timer = os.environ.get(TORCHELASTIC_ENABLE_FILE_TIMER) == "1"
        self._file = os.environ.get(TORCHELASTIC_TIMER_FILE, "")
        if self._wants_timer and not self._file:
            self._file = os.path.join(runtime_dir, "timers")
        self._health_port = health_port

    def start(self) -> None:
        """Starts them; without effect if they run already.

        Raises:
            UsageError: the timers' pipe cannot be made where the user wants it.
        """
        if self._wants_timer and self._timer is None:
            self._timer = self._make_timer()
            self._timer.start()
        if self._health_port and self._health is None:
            self._health = create_healthcheck_server(
                alive_callback=self._last_alive, port=self._health_port, timeout=_HEALTH_TIMEOUT
            )
            self._health.start()

    def _make_timer(self) -> Any:
        try:
            return timer.FileTimerServer(
                file_path=self._file, run_id=self._run_id, max_interval=_CHECK_EVERY, daemon=True
            )
        except OSError as error:
            raise UsageError(
                f"{TORCHELASTIC_TIMER_FILE}={self._file!r}: no pipe can be made there "
                f"({error.strerror}); name a path in a directory that can be written to"
            ) from None

    def _last_alive(self) -> int:
        if self._timer is not None:
            return int(max(self._timer.get_last_progress_time(), self._alive()))
        return int(self._alive())

    def environment(self) -> dict[str, str]:
        """What a worker must know to set timers."""
        return {TORCHELASTIC_TIMER_FILE: self._file} if self._file else {}

    def stop(self) -> None:
        """Stops them."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if self._health is not None:
            self._health.stop()
            self._health = None
