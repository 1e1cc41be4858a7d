"""The agent's end of the channel, with a real worker's end at the other side."""

from __future__ import annotations

import errno
import os
import queue
import socket
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent.workers.worker_channel import Channel
from elastic_runtime.protocol.messages import (
    ENV_CHANNEL,
    ENV_SERIAL,
    Dismiss,
    Hello,
    Message,
    Ready,
)
from elastic_runtime.worker.context import WorkerContext

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0


class End:
    """A channel, and the workers that have called it."""

    def __init__(self, path: Path) -> None:
        self.heard: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self.channel = Channel(str(path), lambda life, said: self.heard.put((life, said)))
        self._workers: list[WorkerContext] = []

    def worker(self, life: int) -> queue.SimpleQueue[Message]:
        """Has a worker say hello; what it is told."""
        told: queue.SimpleQueue[Message] = queue.SimpleQueue()
        worker = WorkerContext({ENV_CHANNEL: self.channel.path, ENV_SERIAL: str(life)})
        worker.listen(told.put)
        worker.tell(Hello(rank=0, round=0, pid=os.getpid(), drains=False, life=life))
        self._workers.append(worker)
        assert self.heard.get(timeout=PATIENCE)[0] == life
        return told

    def close(self) -> None:
        self.channel.close()
        for worker in self._workers:
            worker.close()


@pytest.fixture
def end(tmp_path: Path) -> Iterator[End]:
    found = End(tmp_path / "agent.sock")
    yield found
    found.close()


def test_a_path_may_be_longer_than_the_kernel_takes(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    end = End(folder / "agent.sock")
    told = end.worker(1)
    assert end.channel.tell([1], Dismiss()) == 1
    assert told.get(timeout=PATIENCE) == Dismiss()
    end.close()
    assert not list(folder.iterdir())


def test_a_socket_that_was_removed_is_made_again(end: End) -> None:
    first = end.worker(1)
    end.channel.renew()  # it is there
    os.unlink(end.channel.path)
    end.channel.renew()
    second = end.worker(2)
    assert end.channel.tell([1, 2], Dismiss()) == 2
    assert [told.get(timeout=PATIENCE) for told in (first, second)] == [Dismiss(), Dismiss()]


def test_a_caller_waits_where_too_many_files_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter(range(2))
    accept = socket.socket.accept

    def crowded(listener: socket.socket) -> Any:
        for _ in refusals:
            looks.append(0)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    looks: list[int] = []
    heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
    monkeypatch.setattr(socket.socket, "accept", crowded)
    channel = Channel(str(tmp_path / "socket"), lambda _, message: heard.put(message))
    paused = []
    monkeypatch.setattr(
        channel, "_listen_again", lambda again=channel._listen_again: note(paused, again())
    )
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(channel.path)
        caller.sendall(Ready().encode())
        assert heard.get(timeout=20) == Ready()
    channel.close()
    assert len(looks) == 2
    assert [pause for pause in paused if pause], "it spun"


def note(into: list[float | None], pause: float | None) -> float | None:
    into.append(pause)
    return pause
