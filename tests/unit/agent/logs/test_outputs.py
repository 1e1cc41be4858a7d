"""The end of a worker's output."""

from __future__ import annotations

import os
import selectors
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.logs import outputs
from elastic_runtime.agent.logs.log_directory import WorkerDir
from elastic_runtime.agent.logs.worker_output import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from elastic_runtime.events import Event

PATIENCE = 30.0


class Directory(WorkerDir):
    """A worker's, in a log directory in which nothing can be done until it is free."""

    def __init__(self) -> None:
        super().__init__(1, 0, "", None)
        self.free = threading.Event()
        self.ended = threading.Event()

    @property
    def logged(self) -> bool:
        return True

    def end(self) -> None:
        assert self.free.wait(10 * PATIENCE)
        self.ended.set()


@pytest.fixture
def made() -> Iterator[outputs.Outputs]:
    told: list[Event] = []
    with selectors.DefaultSelector() as selector:
        made = outputs.Outputs(selector, 1, 2, lambda: None, told.append, only_events=False)
        yield made
        made.close()


def test_who_has_no_log_file_does_not_wait_for_the_log_disk(
    made: outputs.Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "WORKER_LOG_TIMEOUT", 10 * PATIENCE)
    directory = Directory()
    ending = threading.Thread(target=made.finish, args=([], directory))
    ending.start()
    ending.join(PATIENCE)
    waits = ending.is_alive()
    directory.free.set()
    ending.join()
    assert not waits
    assert made.logs.flush(PATIENCE)
    assert directory.ended.is_set()


def test_who_has_one_waits_until_all_of_it_is_done(made: outputs.Outputs, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    file = made.logs.open(partial(str, tmp_path / "log"))
    stream = Stream(reading, b"", None, file)
    os.write(writing, b"last words")
    os.close(writing)
    directory = Directory()
    directory.free.set()
    made.finish([stream], directory)
    assert (tmp_path / "log").read_bytes() == b"last words"
    assert directory.ended.is_set()
