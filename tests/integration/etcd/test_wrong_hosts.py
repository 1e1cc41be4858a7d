"""Hosts of an endpoint at which something else listens than etcd."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest

from elastic_runtime.rendezvous.store_contract import Refused
from elastic_runtime.rendezvous.stores.etcd import etcd_client
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import StoreRefused
from tests.integration.etcd.listening import Listening, endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd


@pytest.fixture
def stranger() -> Iterator[str]:
    """Speaks gRPC, and knows none of etcd's calls."""
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host is asked first."""
    monkeypatch.setattr(etcd_client.random, "choice", lambda ways: ways[0])


@pytest.mark.usefixtures("first")
def test_another_host_serves_where_one_is_no_etcd(stranger: str, etcd: EtcdServer) -> None:
    with Listening(f"{stranger},{etcd.endpoint}") as node:
        assert node.store.read("") == ()
        node.start()
        node.put("job", b"1")
        node.until(lambda values: values == {"job": b"1"})
        assert not any(isinstance(event, Refused) for event in node.ear.events)


@pytest.mark.usefixtures("first")
def test_where_none_is_an_etcd_all_of_them_are_named(stranger: str) -> None:
    with Listening(endpoint(f"{stranger},{stranger}")) as node:
        with pytest.raises(StoreRefused) as refusal:
            node.store.read("")
        assert str(refusal.value).count(f"what listens at {stranger} is no etcd") == 2
