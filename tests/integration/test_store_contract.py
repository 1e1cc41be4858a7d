"""The stores that jobs use keep the contract: the embedded one, and a real etcd."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.defaults import CONNECT_TIMEOUT
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore
from elastic_runtime.system.listening import listen
from tests.conformance.store_contract import StoreContract, open_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.store_contract import NewStore
    from tests.etcd_server import EtcdServer

__all__ = ["open_node"]


@pytest.fixture(scope="module")
def hosted() -> Iterator[StoreServer]:
    server = StoreServer(listen("127.0.0.1"))
    yield server
    server.close()


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


class TestEmbedded(StoreContract):
    @pytest.fixture
    def new_store(self, hosted: StoreServer, run_id: str) -> NewStore:
        endpoint = Endpoint("c10d", (f"127.0.0.1:{hosted.port}",), hosted_here=True)
        return lambda ttl: EmbeddedStore(endpoint, run_id, ttl, CONNECT_TIMEOUT)


@pytest.mark.etcd
class TestEtcd(StoreContract):
    @pytest.fixture
    def new_store(self, etcd: EtcdServer, run_id: str) -> NewStore:
        endpoint = Endpoint("etcd", (etcd.endpoint,))
        return lambda ttl: EtcdStore(endpoint, run_id, ttl, 15.0)
