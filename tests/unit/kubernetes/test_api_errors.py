"""What the API has: paths of objects, times, and errors with what follows from them."""

from __future__ import annotations

import pytest

from elastic_runtime.kubernetes.api_errors import NO_ANSWER, ApiError
from elastic_runtime.kubernetes.api_resources import LEASES, PODS
from elastic_runtime.kubernetes.api_times import format_time, parse_time


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


def test_the_path_of_one_of_some_and_of_all() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("team") == "/api/v1/namespaces/team/pods"
    assert PODS.path("team", "one", "log") == "/api/v1/namespaces/team/pods/one/log"
    leases = "/apis/coordination.k8s.io/v1/namespaces/team/leases/one"
    assert LEASES.path("team", "one") == leases


def test_no_name_leads_to_another_object() -> None:
    assert PODS.path("a/b", "../c?d") == "/api/v1/namespaces/a%2Fb/pods/..%2Fc%3Fd"


NOW = 1_750_000_000.0


def test_a_time_is_read_as_it_was_written() -> None:
    assert parse_time(format_time(NOW + 0.9)) == NOW
    assert parse_time("2025-06-15T17:06:40+02:00") == NOW


@pytest.mark.parametrize("text", ["", None, "yesterday", 3, "0001-01-01T00:00:00+23:59"])
def test_what_is_not_a_time_is_0(text: object) -> None:
    assert parse_time(text) == 0.0
