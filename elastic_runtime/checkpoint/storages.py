"""The adapter that fits a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.local import LocalStorage

if TYPE_CHECKING:
    import os

    from elastic_runtime.checkpoint.storage import Storage


def open_storage(directory: str | os.PathLike[str]) -> Storage:
    """The storage at a place; nothing is touched yet.

    Args:
        directory: a path.
    """
    return LocalStorage(directory)
