"""A disk for saves, which a test holds up or lets fail; and the events that were told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.storage import local_storage
from elastic_runtime.errors import CheckpointFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    # All events of a name.
    Said = Callable[[str], list[str]]


class Disk:
    """A disk with a directory for checkpoints, that can be held up, and can fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reached = threading.Semaphore(0)
        self.open = threading.Event()
        self.fails = False
        self.open.set()

    def hold_up(self, save: Callable[[], object]) -> None:
        """Has a save begin, and come as far as to the disk."""
        self.open.clear()
        save()
        assert self.reached.acquire(timeout=60)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk(tmp_path)
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


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    caplog.set_level("INFO", "elastic_runtime")

    def of(event: str) -> list[str]:
        texts = [record.msg % record.args for record in caplog.records]
        return [text for text in texts if text.startswith(f"checkpoint.{event} ")]

    return of
