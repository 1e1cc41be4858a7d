"""``--log-file``: every event as a line of JSON in a file, whatever is on the screen.

Several processes append to one file, such as the nodes of ``--local-nodes``: each line is one
write. A file that was moved away (logrotate) is made again at the next event.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from elastic_runtime.agent.logs.worker_files import LogFile, LogWriter
from elastic_runtime.errors import UsageError
from elastic_runtime.events.log_events import EventsDropped, EventsResumed
from elastic_runtime.reporting.json_lines import AGENT_LINE, JSON, LineEvents
from elastic_runtime.reporting.log import make_emit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from elastic_runtime.events import Emit
    from elastic_runtime.events.event import Event

# Not waiting for a reader, if it is a pipe with a name.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK


@contextmanager
def also_to_file(emit: Emit, path: str, node_name: str = "") -> Iterator[Emit]:
    """Has events written to a file as well, while the block runs.

    Args:
        emit: shows them; called as well when the file cannot be written.
        path: of the file; "": there is none.
        node_name: the node, for each line.

    Raises:
        UsageError: the file cannot be made.
    """
    if not path:
        yield emit
        return
    check_event_file(path)
    # From the writing thread: not to the file, which would be what it waits for.
    writer = LogWriter(emit, dropped=EventsDropped, resumed=EventsResumed)
    file = _EventFile(writer, os.path.abspath(path))
    to_file = make_emit(JSON, cast("TextIO", _Text(file)), node_name)

    def both(event: Event, /) -> None:
        emit(event)
        to_file(event)

    try:
        yield both
    finally:
        writer.close()


def check_event_file(path: str) -> None:
    """Makes the file, if it is not there.

    Raises:
        UsageError: it cannot be made or written to.
    """
    try:
        Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, _FLAGS, 0o644))
    except OSError as error:
        why = "a part of its path is a file" if error.errno == errno.EEXIST else error.strerror
        raise UsageError(
            f"--log-file={path} cannot be written to ({why}): name a file that can be"
        ) from None


class _EventFile(LogFile):
    """A file of whole lines.

    Args:
        writer: appends to it.
        path: of the file.
    """

    def __init__(self, writer: LogWriter, path: str) -> None:
        super().__init__(writer, lambda: path)
        self.path = path

    def append(self, data: bytes) -> int:
        """Writes one line, or nothing of it; see ``LogFile.append``."""
        try:
            if self._descriptor is not None and not _is_at(self.path, self._descriptor):
                self._close()
            if self._descriptor is None:
                self._descriptor = self._opened()
            if self.dropped:
                _write_line(self._descriptor, _missing(self.dropped))
            _write_line(self._descriptor, data)
        except OSError:
            self.dropped += len(data)
            self._close()
            raise
        self.dropped = 0
        return len(data)


class _Text:
    """What a logger writes its lines to."""

    def __init__(self, file: LogFile) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Each line is on its way already."""


def _missing(size: int) -> bytes:
    said = f"{size} bytes of events could not be written here"
    return LineEvents(AGENT_LINE)(f"{said}\n".encode())


def _is_at(path: str, descriptor: int) -> bool:
    """Whether an open file is still what its path leads to."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_line(descriptor: int, line: bytes) -> None:
    written = os.write(descriptor, line)
    if written == len(line):
        return
    # The disk had space for the beginning only, which would make the next line unreadable too.
    with suppress(OSError):
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        if os.fstat(descriptor).st_size == end:  # no other process has written meanwhile
            os.ftruncate(descriptor, end - written)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
