"""The agent's end of the channel, with a real worker's end at the other side."""

from __future__ import annotations

import os
import queue
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.channel import Channel
from elastic_runtime.protocol.messages import ENV_CHANNEL, ENV_LIFE, Dismiss, Hello, Message
from elastic_runtime.worker.context import WorkerContext

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 20.0


class End:
    """A channel, and the workers that have called it."""

    def __init__(self, path: Path) -> None:
        self.heard: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self.channel = Channel(str(path), lambda life, said: self.heard.put((life, said)))
        self._workers: list[WorkerContext] = []

    def worker(self, life: int) -> queue.SimpleQueue[Message]:
        """Has a worker say hello; what it is told."""
        told: queue.SimpleQueue[Message] = queue.SimpleQueue()
        worker = WorkerContext({ENV_CHANNEL: self.channel.path, ENV_LIFE: str(life)})
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
