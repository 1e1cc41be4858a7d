"""A thread that waits for announcements on one tape and reads what they are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.c10d.run_cells import Run
from elastic_runtime.system import threads

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from elastic_runtime.rendezvous.stores.c10d.cells import Cell
    from elastic_runtime.rendezvous.stores.c10d.link import Link
    from elastic_runtime.rendezvous.stores.c10d.run_cells import Tape


class Audience(Protocol):
    """Who a reader reads for; called from the reader's thread."""

    def followed(self, keys: Iterable[str]) -> list[str]:
        """Those among the announced keys that are worth reading."""
        ...

    def found(self, cells: dict[str, Cell]) -> None:
        """Takes in cells that were announced."""
        ...

    def lagged(self) -> None:
        """Announcements were missed: look at everything."""
        ...

    def failed(self, why: str) -> None:
        """The connection is of no more use; the reader ends."""
        ...


class Reader:
    """Reads one tape over a connection of its own.

    Args:
        connect: makes the connection.
        run_id: names the run.
        tape: picks the tape.
        position: the last entry that needs not be read.
        audience: who to read for.

    Attributes:
        position: the last entry that was read.
        listening: whether it is connected.
    """

    def __init__(
        self,
        connect: Callable[[], Link],
        run_id: str,
        tape: Callable[[Run], Tape],
        position: int,
        audience: Audience,
    ) -> None:
        self._thread: threading.Thread | None = None
        self._connect = connect
        self._run_id = run_id
        self._tape = tape
        self.position = position
        self._audience = audience
        self._link: Link | None = None
        self._ended = False
        self.listening = False

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threads.spawn(self._run, name="c10d-reader")

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout: float) -> None:
        """Waits for the end of the thread, for so many seconds at most."""
        if self._thread is not None:
            self._thread.join(timeout)

    def end(self) -> None:
        """Ends the reader, at its next announcement."""
        self._ended = True

    def cut(self) -> None:
        """Ends it now, by ending its connection."""
        self._ended = True
        if self._link is not None:
            self._link.cut()

    def _run(self) -> None:
        try:
            self._link = self._connect()
            run = Run(self._link, self._run_id)
            tape = self._tape(run)
            self.listening = True
            while not self._ended:
                self._read(run, tape)
        except StoreUnavailable as error:
            if not self._ended:
                self._audience.failed(str(error))
        finally:
            if self._link is not None:
                self._link.cut()

    def _read(self, run: Run, tape: Tape) -> None:
        tape.wait(self.position + 1)
        length = tape.length()
        if self._ended or length == self.position:
            return
        if tape.lags(self.position, length):
            self._audience.lagged()
        else:
            notices = tape.read(self.position + 1, length)
            keys = (key for raw in notices for key in raw.decode(errors="replace").split("\n"))
            self._audience.found(run.cells(self._audience.followed(dict.fromkeys(keys))))
        self.position = length
