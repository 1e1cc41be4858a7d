"""All that workers print: where it is read from, shown, and written to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.agent.logs.worker_files import LogWriter
from elastic_runtime.agent.logs.worker_output import Pump, Stream
from elastic_runtime.limits import WORKER_LOG_TIMEOUT
from elastic_runtime.reporting.console import open_consoles

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Sequence

    from elastic_runtime.agent.logs.log_directory import WorkerDir
    from elastic_runtime.events import Event

_FLUSH_SECONDS = 0.1


class Outputs:
    """The output of all workers of an agent; used in the one thread that moves it.

    Args:
        selector: where pipes are registered; what is ready is a ``Stream``.
        stdout, stderr: descriptors on which it is shown.
        wake: wakes that thread.
        notify: takes what is to be said of log files.
        only_events: what is shown on ``stderr`` are events.

    Attributes:
        consoles: by name.
        logs: writes files.
        pump: moves output from pipes to both.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        stdout: int,
        stderr: int,
        wake: Callable[[], None],
        notify: Callable[[Event], None],
        *,
        only_events: bool,
    ) -> None:
        self.pump = Pump(selector)
        self.consoles = open_consoles(stdout, stderr, wake)
        self.consoles["stderr"].only_events = only_events
        self.logs = LogWriter(notify, wake)

    def finish(self, streams: Sequence[Stream], directory: WorkerDir) -> None:
        """Passes on all that a worker has printed, as it has ended.

        Args:
            streams: its output.
            directory: where its files are.
        """
        self.pump.finish(streams)
        for console in set(self.consoles.values()):
            console.flush(_FLUSH_SECONDS)
        if directory.logged:
            self.logs.call(directory.end)
        if any(stream.is_logged for stream in streams):
            self.logs.flush(WORKER_LOG_TIMEOUT)

    def close(self) -> None:
        """Ends the threads that show and write it."""
        for console in set(self.consoles.values()):
            console.close()
        self.logs.close()
