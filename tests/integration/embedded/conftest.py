"""Stores for the tests of this folder: hosted by a process, hosted here, and opened by a node."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.defaults import CONNECT_TIMEOUT
from elastic_runtime.rendezvous.store_contract import StoreSnapshot
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.system.listening import listen
from tests.conformance.listening import Ear
from tests.conformance.store_contract import Node
from tests.integration.embedded.hosting import HostProcess

OpenAt = Callable[..., Node]


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    with HostProcess() as host:
        yield host


@pytest.fixture
def here() -> Iterator[StoreServer]:
    hosted = StoreServer(listen("127.0.0.1"))
    yield hosted
    hosted.close()


@pytest.fixture
def open_at(run_id: str) -> Iterator[OpenAt]:
    with ExitStack() as stack:

        def open_it(
            port: int, name: str, ttl: float = 5.0, *, may_host: bool = False, waits: bool = True
        ) -> Node:
            endpoint = Endpoint("c10d", (f"127.0.0.1:{port}",), hosted_here=not may_host)
            store = EmbeddedStore(endpoint, run_id, ttl, CONNECT_TIMEOUT)
            stack.callback(store.close)
            node = Node(f"nodes/{name}", store, Ear())
            store.start(node.key, node.ear)
            if waits:
                node.ear.hears(StoreSnapshot)
            return node

        yield open_it
