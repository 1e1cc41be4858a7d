"""One process after the other, where no ranks are connected that could wait at a barrier."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def turn(directory: str, *, everywhere: bool = False) -> Iterator[None]:
    """Lets one process through at a time; not to be entered twice by one.

    Args:
        directory: of the job, which names the lock.
        everywhere: of all nodes that see the directory, which must be a path; else of this node.
    """
    if everywhere and "://" not in directory:
        path = f"{directory.rstrip('/')}.prepare-lock"
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    else:
        name = hashlib.sha256(os.path.abspath(directory).encode()).hexdigest()[:16]
        path = os.path.join(tempfile.gettempdir(), f"elastic-prepare-{os.getuid()}-{name}.lock")
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Processes that were forked meanwhile may outlive this, and have the file open.
            fcntl.flock(file, fcntl.LOCK_UN)
