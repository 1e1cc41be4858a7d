"""What follows from an answer of an API server that is an error."""

from __future__ import annotations

import pytest

from elastic_runtime.kubernetes.api_errors import NO_ANSWER, ApiError


def error(code: int, reason: str = "", message: str = "no") -> ApiError:
    return ApiError(code, reason, message, "GET /api/v1/pods")


@pytest.mark.parametrize(
    ("code", "transient"),
    [
        (0, True),
        (400, False),
        (401, True),  # a token that is being renewed
        (403, False),
        (404, False),
        (408, True),
        (409, False),
        (422, False),
        (429, True),
        (500, True),
        (503, True),
    ],
)
def test_which_requests_may_succeed_later(code: int, transient: bool) -> None:
    assert error(code).transient == transient


def test_one_status_may_mean_two_things() -> None:
    taken, changed = error(409, "AlreadyExists"), error(409, "Conflict")
    assert taken.conflict and changed.conflict
    assert (taken.already_exists, changed.already_exists) == (True, False)
    quota, rights = error(403, "Forbidden", "exceeded quota: small"), error(403, "Forbidden")
    assert (quota.quota_exceeded, rights.quota_exceeded) == (True, False)


def test_the_request_is_in_the_message_for_people_only() -> None:
    gone = error(0, NO_ANSWER, "it is away")
    assert str(gone) == "GET /api/v1/pods: it is away"
    assert gone.message == "it is away"
    assert not gone.not_found and not gone.expired
    assert error(404).not_found and error(410).expired
