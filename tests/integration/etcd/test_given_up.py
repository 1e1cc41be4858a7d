"""What a client asked for and waits for no longer harms no etcd."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.protocol.records import NODES
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.etcd_client import EtcdClient
from elastic_runtime.rendezvous.stores.etcd.etcd_keys import RunKeys, WatchScope
from elastic_runtime.rendezvous.stores.etcd.range_reads import read_later
from tests.etcd_server import etcdctl
from tests.integration.etcd.listening import endpoint

if TYPE_CHECKING:
    from tests.conftest import NewEtcd

pytestmark = pytest.mark.etcd

_AT_ONCE, _TIMES = 20, 150


def test_reads_that_are_given_up_end_no_etcd(new_etcd: NewEtcd) -> None:
    server = new_etcd()
    keys, draw = RunKeys("test", "run"), random.Random(1)
    client = EtcdClient(endpoint(server.endpoint))
    put = rpc.PutRequest(key=keys.absolute(NODES + "a"), value=b"x" * 200)
    client.txn(rpc.TxnRequest(success=[rpc.RequestOp(request_put=put)]))
    given_up = 0
    for _ in range(_TIMES):
        answers: list[object] = []
        all_here = threading.Semaphore(0)

        def came(
            answer: object,
            answers: list[object] = answers,
            all_here: threading.Semaphore = all_here,
        ) -> None:
            answers.append(answer)
            all_here.release()

        for _ in range(_AT_ONCE):
            reads = keys.look(WatchScope(NODES + "a"))
            read_later(client, reads, came, draw.uniform(0.0005, 0.006), patient=False)
        for _ in range(_AT_ONCE):
            assert all_here.acquire(timeout=30)
        given_up += sum(not isinstance(answer, list) for answer in answers)
    client.close()
    assert 0 < given_up < _AT_ONCE * _TIMES
    assert etcdctl(server.endpoint, "get", "--count-only", "--write-out=fields", "/test/")
