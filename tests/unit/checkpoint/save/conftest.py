"""A disk for saves, which a test holds up or lets fail."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.storage import local_storage
from elastic_runtime.errors import CheckpointFailed

if TYPE_CHECKING:
    from collections.abc import Iterator


class Disk:
    """A disk that can be held up, and can fail."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.open = threading.Event()
        self.fails = False
        self.open.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    durable = local_storage.LocalWriter.sync

    def sync(writer: local_storage.LocalWriter) -> None:
        found.reached.release()
        assert found.open.wait(60)
        if found.fails:
            raise CheckpointFailed("cannot save: the disk is on fire; put it out")
        durable(writer)

    monkeypatch.setattr(local_storage.LocalWriter, "sync", sync)
    yield found
    found.open.set()
