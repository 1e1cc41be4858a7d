"""What a worker may say on the channel, and what is no message."""

from __future__ import annotations

import json

import pytest

from elastic_runtime.errors import RecordError
from elastic_runtime.protocol.messages import (
    Ask,
    Dismiss,
    Enter,
    Heard,
    Hello,
    Left,
    Message,
    Nearby,
    Note,
    decode,
)

GOOD: list[Message] = [
    Hello(1, 2, 3, True, 4),
    Note("step.first", 0, 1, {"step": 3, "why": ["a", {"b": None}]}),
    Left(1, -1, False, "a peer is gone"),
    Heard(True, "train.py:3", ""),
    Ask(),
    Enter(1, 0, 2, 0, 1, 0, 2, "h", 1, "k", [["h", 1], ["i", 2]]),
    Nearby([]),
    Dismiss(),
]


@pytest.mark.parametrize("message", GOOD)
def test_what_is_sent_is_read(message: Message) -> None:
    assert decode(message.encode()) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[" * 100_000,
        b'{"kind":' * 100_000,
        b"3",
        b"{}",
        b'{"kind": []}',
        b'{"kind": "no such thing"}',
        b'{"kind": "ready", "more": 1}',
        b'{"kind": "returned"}',
        b'{"kind": "returned", "round": "1"}',
        b'{"kind": "returned", "round": true}',
        b'{"kind": "returned", "round": 1.5}',
        b'{"kind": "note", "name": "x", "rank": 0, "round": 1, "fields": 5}',
        b'{"kind": "note", "name": "x", "rank": 0, "round": 1, "fields": {"event": "y"}}',
        b'{"kind": "nearby", "places": [5]}',
        json.dumps(
            {"kind": "hello", "rank": 0, "round": 1, "pid": 2, "drains": True, "life": {}}
        ).encode(),
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(RecordError):
        decode(line)
