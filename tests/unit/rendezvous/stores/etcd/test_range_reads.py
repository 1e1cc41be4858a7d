"""Several ranges are read as of the moment at which the first one was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.range_reads import read_later

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_one_range_needs_no_other() -> None:
    client, done = reading(A)
    client.answer(0, 7)
    assert len(done[0]) == 1


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
