"""The topology of this node, from a file that may be filled a moment after the node has started.

On Kubernetes the file is mounted by the downward API, and shows an annotation that the controller
writes once the pod has its node. A node that joins without a topology only has a worse rank, so the
file is waited for, and not for long.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from elastic_runtime.events.node_events import TopologyUnknown
from elastic_runtime.limits import TOPOLOGY_FILE_INTERVAL, TOPOLOGY_FILE_TIMEOUT
from elastic_runtime.topology import parse_topology

if TYPE_CHECKING:
    from elastic_runtime.config import JobConfig
    from elastic_runtime.events import Emit

# More than any topology has.
_MOST_BYTES = 4096


class _NotYet(Exception):
    """The file says nothing so far; why, for people."""


def with_topology(
    config: JobConfig, emit: Emit, *, timeout: float = TOPOLOGY_FILE_TIMEOUT
) -> JobConfig:
    """The settings with the topology that the file says, if they name one and say none themselves.

    Args:
        config: the settings.
        emit: told if nothing can be read there.
        timeout: how long the file may be missing or empty, in seconds.
    """
    path = config.node_topology_file
    if config.node_topology or not path:
        return config
    deadline = time.monotonic() + timeout
    while True:
        try:
            return config.with_(node_topology=_read(path))
        except _NotYet as error:
            if time.monotonic() >= deadline:
                emit(TopologyUnknown(path, f"{error} after {timeout:g} s"))
                return config
        except ValueError as error:
            emit(TopologyUnknown(path, f"has no topology: {error}"))
            return config
        time.sleep(TOPOLOGY_FILE_INTERVAL)  # no event tells of a file in a volume of any kind


def _read(path: str) -> tuple[str, ...]:
    """What the file says.

    Raises:
        _NotYet: nothing, or it cannot be read.
        ValueError: something else.
    """
    try:
        # Nobody may ever write into a pipe that has this name.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise ValueError("it is no regular file")
            data = os.read(file, _MOST_BYTES)
        finally:
            os.close(file)
    except OSError as error:
        raise _NotYet(f"cannot be read ({error.strerror or error})") from None
    if not data.strip():
        raise _NotYet("is still empty")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if "\n" in text.strip():
        raise ValueError("it has several lines, and is to have one, such as zone/block/rack")
    return parse_topology(text)
