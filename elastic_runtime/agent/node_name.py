"""The name of a node that was given none: the host's, with a number if several nodes share it."""

from __future__ import annotations

import errno
import hashlib
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 10_000


@contextmanager
def own_name(run_id: str) -> Iterator[str]:
    """Takes a name that no other node of the run has on this host, while the block runs.

    The first one is ``host``, the others ``host#2``, ``host#3``, …; the lowest free number is
    taken. What is claimed is an abstract Unix address: the kernel frees it when the process
    ends, however it ends, and a container with its own network does not share it.

    Args:
        run_id: names of different runs do not count.
    """
    host = socket.gethostname()
    run = hashlib.sha256(run_id.encode()).hexdigest()[:16]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        number = _claim(claim, run)
        yield host if number == 1 else f"{host}#{number}"


def _claim(claim: socket.socket, run: str) -> int:
    for number in range(1, _MOST):
        try:
            claim.bind(f"\0elastic-runtime/{run}/{number}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            break  # there are no such addresses here: the host's name must do
        return number
    return 1
