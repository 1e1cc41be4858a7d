"""Which store an endpoint names."""

from __future__ import annotations

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore
from elastic_runtime.rendezvous.stores.open_store import open_store, store_complaint


@pytest.mark.parametrize(("backend", "kind"), [("etcd", EtcdStore), ("c10d", EmbeddedStore)])
def test_each_kind_of_endpoint_has_its_store(backend: str, kind: type) -> None:
    store = open_store(Endpoint(backend, ("127.0.0.1:1",), hosted_here=True), "run", 10, 1)
    assert isinstance(store, kind)
    store.close()


def test_another_kind_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'static'"):
        open_store(Endpoint("static", ("h:1",)), "run", 10, 1)


def test_an_embedded_store_has_nothing_to_complain_about() -> None:
    assert store_complaint(Endpoint("c10d", ("127.0.0.1:1",))) == ""
