"""What etcd's answers are taken for, without an etcd."""

from __future__ import annotations

import grpc
import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.etcd import etcd_errors
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import as_store_error, canceled

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


UNKNOWN = grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize(
    ("code", "details", "kind", "text"),
    [
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "etcdserver: mvcc: database space exceeded",
            etcd_errors.StoreFull,
            "compact and defragment",
        ),
        (
            UNKNOWN,
            "etcdserver: request is too large",
            etcd_errors.RequestTooLarge,
            "--max-request-bytes",
        ),
        (UNKNOWN, "etcdserver: no leader", etcd_errors.NoLeader, "start them again"),
        (UNKNOWN, "etcdserver: requested lease not found", etcd_errors.LeaseGone, "lease"),
        (UNKNOWN, "etcdserver: invalid auth token", etcd_errors.TokenRejected, "auth token"),
        (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "Deadline Exceeded",
            etcd_errors.EtcdTimeout,
            "did not answer in time",
        ),
        (grpc.StatusCode.UNIMPLEMENTED, "", etcd_errors.NoEtcd, "does not speak etcd's v3 API"),
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses: [Connection refused]",
            StoreUnavailable,
            "cannot be reached: Connection refused",
        ),
    ],
)
def test_each_answer_is_a_class_and_says_what_to_do(
    code: grpc.StatusCode, details: str, kind: type[StoreUnavailable], text: str
) -> None:
    found = as_store_error(Refusal(code, details), WHERE)
    assert type(found) is kind
    assert text in str(found) and "etcd-1:2379" in str(found)


def test_a_refused_user_is_named_but_not_the_password() -> None:
    refused = Refusal(UNKNOWN, "etcdserver: permission denied")
    assert "--etcd-user" in str(as_store_error(refused, WHERE))
    said = str(as_store_error(refused, USER))
    assert "'ann'" in said and "secret" not in said


def test_the_end_of_a_watch_has_the_same_classes() -> None:
    compacted = "etcdserver: mvcc: required revision has been compacted"
    ended = canceled(rpc.WatchResponse(cancel_reason=compacted), WHERE)
    assert type(ended) is etcd_errors.HistoryGone
    other = canceled(rpc.WatchResponse(cancel_reason="because"), WHERE)
    assert type(other) is StoreUnavailable and "because" in str(other)
