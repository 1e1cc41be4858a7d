"""Unix sockets at paths of any length."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# What the kernel takes as the address of a Unix socket, in bytes.
_LONGEST = 107


@contextmanager
def address_of(path: str) -> Iterator[str]:
    """An address for the Unix socket at ``path``, to bind or to connect to while the block runs.

    A path that is too long is named by way of a descriptor of its directory: this is the
    same socket.

    Args:
        path: of the socket.

    Raises:
        OSError: its directory cannot be opened.
    """
    if len(os.fsencode(path)) <= _LONGEST:
        yield path
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
