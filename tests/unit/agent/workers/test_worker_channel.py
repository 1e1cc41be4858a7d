"""The agent's end of the channel, with a real worker at the other side, and its environment."""

from __future__ import annotations

import errno
import os
import queue
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent.workers.worker_channel import Channel
from elastic_runtime.agent.workers.worker_environment import worker_environment
from elastic_runtime.protocol.messages import (
    ENV_CHANNEL,
    ENV_SERIAL,
    Dismiss,
    Hello,
    Message,
    Ready,
)
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.worker.context import WorkerContext
from tests.unit.agent.jobs import job

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
    paused: list[float | None] = []
    again = channel._listen_again
    monkeypatch.setattr(channel, "_listen_again", lambda: paused.append(again()) or paused[-1])
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(channel.path)
        caller.sendall(Ready().encode())
        assert heard.get(timeout=20) == Ready()
    channel.close()
    assert len(looks) == 2
    assert [pause for pause in paused if pause], "it spun"


# What a worker finds in its environment


LAST = RoundRecord(1, "life", (Member("a", "a", "127.0.0.1", 1),), 1, "first")
PLACES = {"error_file": "e", "progress_file": "p", "channel": "c"}


@pytest.mark.parametrize(
    ("address", "interface"), [("127.0.0.1", "lo"), ("::1", "lo"), ("192.0.2.1", None)]
)
def test_gloo_stays_on_the_loopback_where_one_machine_is_enough(
    address: str, interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    last = replace(LAST, members=(Member("a", "a", address, 1),))
    made = worker_environment(job(), last, 0, 0, **PLACES)
    assert made.get("GLOO_SOCKET_IFNAME") == interface
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")  # the user's word
    assert worker_environment(job(), last, 0, 0, **PLACES)["GLOO_SOCKET_IFNAME"] == "ib0"


def test_the_signals_of_the_launcher() -> None:
    found = worker_environment(job(signals=("SIGTERM", "SIGUSR1")), LAST, 0, 0, **PLACES)
    assert found["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGUSR1"  # as torchrun has it
