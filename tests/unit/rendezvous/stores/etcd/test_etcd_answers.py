"""What etcd's answers are taken for, without an etcd."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.etcd import connection_diagnosis, etcd_errors
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.connection_diagnosis import (
    access_refusal,
    etcd_complaint,
)
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import as_store_error, canceled
from elastic_runtime.rendezvous.stores.etcd.range_reads import read_later

if TYPE_CHECKING:
    from collections.abc import Callable


WHERE = Endpoint("etcd", hosts=("etcd-1:2379",))
USER = Endpoint("etcd", hosts=("etcd-1:2379",), user="ann", password="secret")


class Refusal(grpc.RpcError):
    """As gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__()
        self._answer = code, details

    def code(self) -> grpc.StatusCode:
        return self._answer[0]

    def details(self) -> str:
        return self._answer[1]


_Code = grpc.StatusCode
_NO_SPACE = "etcdserver: mvcc: database space exceeded"
_REFUSED = "failed to connect to all addresses: [Connection refused]"


@pytest.mark.parametrize(
    ("code", "details", "kind", "text"),
    [
        (_Code.RESOURCE_EXHAUSTED, _NO_SPACE, "StoreFull", "compact and defragment"),
        (_Code.UNKNOWN, "etcdserver: request is too large", "RequestTooLarge", "--max-request"),
        (_Code.UNKNOWN, "etcdserver: no leader", "NoLeader", "start them again"),
        (_Code.UNKNOWN, "etcdserver: requested lease not found", "LeaseGone", "lease"),
        (_Code.UNKNOWN, "etcdserver: invalid auth token", "TokenRejected", "auth token"),
        (_Code.DEADLINE_EXCEEDED, "Deadline Exceeded", "EtcdTimeout", "did not answer in time"),
        (_Code.UNIMPLEMENTED, "", "NoEtcd", "does not speak etcd's v3 API"),
        (_Code.UNAVAILABLE, _REFUSED, "StoreUnavailable", "cannot be reached: Connection refused"),
    ],
)
def test_each_answer_is_a_class_and_says_what_to_do(
    code: grpc.StatusCode, details: str, kind: str, text: str
) -> None:
    found = as_store_error(Refusal(code, details), WHERE)
    assert type(found).__name__ == kind
    assert text in str(found) and "etcd-1:2379" in str(found)


def test_a_refused_user_is_named_but_not_the_password() -> None:
    refused = Refusal(_Code.UNKNOWN, "etcdserver: permission denied")
    assert "--etcd-user" in str(as_store_error(refused, WHERE))
    said = str(as_store_error(refused, USER))
    assert "'ann'" in said and "secret" not in said


def test_the_end_of_a_watch_has_the_same_classes() -> None:
    compacted = "etcdserver: mvcc: required revision has been compacted"
    ended = canceled(rpc.WatchResponse(cancel_reason=compacted), WHERE)
    assert type(ended) is etcd_errors.HistoryGone
    other = canceled(rpc.WatchResponse(cancel_reason="because"), WHERE)
    assert type(other) is StoreUnavailable and "because" in str(other)


# ---------------------------------------------------------------- whether it is a store for us

HOST, OTHER = "10.0.0.1:2379", "10.0.0.2:2379"
ETCD = (200, json.dumps({"etcdserver": "3.5.9"}).encode())


class Untrusted(ssl.SSLCertVerificationError):
    verify_message = "self-signed certificate"


Answers = dict[str, tuple[int, bytes] | Exception]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What each host answers over plain HTTP."""
    found: Answers = {}

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
    answers: Answers, answer: tuple[int, bytes] | Exception, why: str
) -> None:
    answers[HOST] = answer
    found = access_refusal(Endpoint("etcd", (HOST,)))
    assert why in found if why else found == ""


def test_one_host_that_may_take_us_is_enough(answers: Answers) -> None:
    answers[HOST], answers[OTHER] = (404, b""), TimeoutError()
    assert access_refusal(Endpoint("etcd", (HOST, OTHER))) == ""
    answers[OTHER] = (404, b"")
    assert access_refusal(Endpoint("etcd", (HOST, OTHER))).count("is no etcd") == 2


def test_a_store_that_is_not_healthy_says_why(answers: Answers) -> None:
    endpoint = Endpoint("etcd", (HOST, OTHER))
    answers[HOST] = TimeoutError()
    answers[OTHER] = 503, b'{"health": "false", "reason": "ALARM NOSPACE"}'
    assert etcd_complaint(endpoint) == f"{OTHER} is not healthy: ALARM NOSPACE"
    answers[OTHER] = 200, b'{"health": "true"}'
    assert etcd_complaint(endpoint) == ""


# ---------------------------------------------------------------- several ranges as of one moment


class _Client:
    """Keeps requests until they are answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []

    def range_later(self, request: Any, came: Any, timeout: float, patient: bool) -> None:
        self.asked.append((request, came))

    def answer(self, number: int, revision: int) -> None:
        request, came = self.asked[number]
        answer = rpc.RangeResponse(count=len(request.key))
        answer.header.revision = revision
        came(answer)


def reading(*requests: Any) -> tuple[_Client, list[Any]]:
    client, done = _Client(), list[Any]()
    read_later(cast("Any", client), requests, done.append, patient=True)
    return client, done


A, BB, CCC = rpc.RangeRequest(key=b"a"), rpc.RangeRequest(key=b"bb"), rpc.RangeRequest(key=b"ccc")


def test_the_others_are_read_at_the_revision_of_the_first() -> None:
    client, _done = reading(A, BB, rpc.RangeRequest(key=b"ccc", revision=3))
    assert len(client.asked) == 1, "its revision is not known yet"
    client.answer(0, 7)
    assert [request.revision for request, _ in client.asked] == [0, 7, 3]
    assert BB.revision == 0, "a request of the caller's is not changed"


def test_answers_come_in_the_order_of_the_requests() -> None:
    client, done = reading(A, BB, CCC)
    client.answer(0, 7)
    client.answer(2, 9)
    assert not done
    client.answer(1, 8)
    assert [[answer.count for answer in answers] for answers in done] == [[1, 2, 3]]


def test_the_first_error_is_the_answer_and_comes_once() -> None:
    client, done = reading(A, BB, CCC)
    client.answer(0, 7)
    error = StoreUnavailable("away")
    client.asked[2][1](error)
    client.asked[1][1](StoreUnavailable("away, too"))
    assert done == [error]
    client, done = reading(A, BB)
    client.asked[0][1](error)
    assert done == [error] and len(client.asked) == 1
    client, done = reading(A)  # one range needs no other
    client.answer(0, 7)
    assert len(done[0]) == 1
