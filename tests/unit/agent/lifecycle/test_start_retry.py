"""When a start that the machine has refused is tried again."""

from __future__ import annotations

import errno

from elastic_runtime.agent.lifecycle.start_retry import (
    PATIENCE,
    cause,
    is_shortage,
    refused,
    remedy,
)


def test_pauses_grow_and_come_to_an_end() -> None:
    shortage, now, pauses = refused(None, 100.0), 100.0, []
    while shortage is not None:
        pauses.append(shortage.pause)
        assert shortage.again == now + shortage.pause
        now = shortage.again
        shortage = refused(shortage, now)
        assert len(pauses) < 100
    assert pauses == sorted(pauses)
    assert pauses[0] < 1.0 < pauses[-1]
    assert PATIENCE <= now - 100.0 <= PATIENCE + pauses[-1]


def test_what_the_machine_lacks_is_told_from_what_the_user_did_wrong() -> None:
    for number in (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE):
        assert is_shortage(number)
        assert cause(number)
        assert remedy(number)
    for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, 0, None):
        assert not is_shortage(number)
