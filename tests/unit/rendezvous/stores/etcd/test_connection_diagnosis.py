"""Why a host that answers is no store for us, and when it may still become one."""

from __future__ import annotations

import http.client
import json
import ssl

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.stores.etcd import connection_diagnosis
from elastic_runtime.rendezvous.stores.etcd.connection_diagnosis import (
    access_refusal,
    etcd_complaint,
)

HOST, OTHER = "10.0.0.1:2379", "10.0.0.2:2379"
ETCD = (200, json.dumps({"etcdserver": "3.5.9"}).encode())


class Untrusted(ssl.SSLCertVerificationError):
    verify_message = "self-signed certificate"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, bytes] | Exception]:
    """What each host answers over plain HTTP."""
    found: dict[str, tuple[int, bytes] | Exception] = {}

    def fetch(where: tuple[str, int], context: object, path: str = "/version") -> tuple[int, bytes]:
        answer = found[f"{where[0]}:{where[1]}"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(connection_diagnosis, "_fetch", fetch)
    return found


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ETCD, ""),
        ((200, b'{"etcdserver": "2.3.8"}'), "is etcd 2.3.8, which has no v3 API"),
        ((404, b"not here"), "is no etcd: it answers /version with HTTP 404"),
        ((200, b"[]"), "is no etcd"),
        ((503, b"busy"), ""),  # a proxy whose etcd is not there yet
        (ConnectionRefusedError(), ""),  # it may come back
        (TimeoutError(), ""),
        (http.client.BadStatusLine("SSH-2.0"), "is no etcd: it does not speak HTTP"),
        (Untrusted(), "is not trusted (self-signed certificate)"),
    ],
)
def test_what_will_never_take_us_is_said(
    answers: dict[str, tuple[int, bytes] | Exception],
    answer: tuple[int, bytes] | Exception,
    why: str,
) -> None:
    answers[HOST] = answer
    found = access_refusal(Endpoint("etcd", (HOST,)))
    assert why in found if why else found == ""


def test_one_host_that_may_take_us_is_enough(
    answers: dict[str, tuple[int, bytes] | Exception],
) -> None:
    answers[HOST], answers[OTHER] = (404, b""), TimeoutError()
    assert access_refusal(Endpoint("etcd", (HOST, OTHER))) == ""
    answers[OTHER] = (404, b"")
    assert access_refusal(Endpoint("etcd", (HOST, OTHER))).count("is no etcd") == 2


def test_a_store_that_is_not_healthy_says_why(
    answers: dict[str, tuple[int, bytes] | Exception],
) -> None:
    endpoint = Endpoint("etcd", (HOST, OTHER))
    answers[HOST] = TimeoutError()
    answers[OTHER] = 503, b'{"health": "false", "reason": "ALARM NOSPACE"}'
    assert etcd_complaint(endpoint) == f"{OTHER} is not healthy: ALARM NOSPACE"
    answers[OTHER] = 200, b'{"health": "true"}'
    assert etcd_complaint(endpoint) == ""
