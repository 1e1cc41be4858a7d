"""The agent's end of the channel, where there is no descriptor left for a caller."""

from __future__ import annotations

import errno
import os
import queue
import socket
from typing import TYPE_CHECKING, Any

from elastic_runtime.agent.channel import Channel
from elastic_runtime.protocol.messages import Message, Ready

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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
