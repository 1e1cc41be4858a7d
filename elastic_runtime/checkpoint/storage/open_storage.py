"""Picks the storage for a directory or URL: ``open_storage``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.remote_storage import RemoteStorage
from elastic_runtime.errors import CheckpointUsageError

if TYPE_CHECKING:
    from elastic_runtime.checkpoint.storage.first_contact import Patience
    from elastic_runtime.checkpoint.storage.storage_contract import Storage


def open_storage(directory: str | os.PathLike[str], first: Patience | None = None) -> Storage:
    """The storage at a place; nothing is touched yet.

    Args:
        directory: a path, or a URL such as ``s3://bucket/run`` of a kind that fsspec knows.
        first: how long a store has for its first answer; None: as for any other.

    Raises:
        CheckpointError: what the URL needs is not installed; or the place has no name, as of a
            variable that is not set.
    """
    if not os.fspath(directory):
        raise CheckpointUsageError(
            "the checkpoint directory is empty: name one, such as '/shared/run' or 's3://bucket/run'"
        )
    if isinstance(directory, str) and "://" in directory:
        scheme, _, path = directory.partition("://")
        if scheme not in ("file", "local"):
            return RemoteStorage(directory, first)
        directory = path
    return LocalStorage(directory)
