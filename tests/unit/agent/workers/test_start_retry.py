"""When a start that the machine has refused is tried again."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from elastic_runtime.agent.workers.start_retry import cause, lacks_resources, next_retry, remedy
from elastic_runtime.limits import START_RETRY_TIMEOUT

if TYPE_CHECKING:
    import pytest


def test_pauses_grow_and_come_to_an_end() -> None:
    retry, now, pauses = next_retry(None, 100.0), 100.0, []
    while retry is not None:
        pauses.append(round(retry.again - now, 6))
        assert retry.refusals == len(pauses)
        now = retry.again
        retry = next_retry(retry, now)
        assert len(pauses) < 100
    assert pauses == sorted(pauses)
    assert pauses[0] < 1.0 < pauses[-1]
    assert START_RETRY_TIMEOUT <= now - 100.0 <= START_RETRY_TIMEOUT + pauses[-1]


def test_the_first_refusal_is_always_followed_by_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastic_runtime.agent.workers.start_retry.START_RETRY_TIMEOUT", 0.0)
    first = next_retry(None, 100.0)
    assert first is not None
    assert next_retry(first, first.again) is None


def test_what_the_machine_lacks_is_told_from_what_the_user_did_wrong() -> None:
    for number in (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE):
        assert lacks_resources(number)
        assert cause(number)
        assert remedy(number)
    for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, 0, None):
        assert not lacks_resources(number)
