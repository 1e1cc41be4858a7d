"""Opens the store that an endpoint names; only what that store needs is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.store_contract import Store


def open_store(
    endpoint: Endpoint, run_id: str, lease_ttl: float, connect_timeout: float, address: str = ""
) -> Store:
    """Makes a store; nothing is connected before it is started or asked.

    Args:
        endpoint: where it is.
        run_id: the run whose records it is to show.
        lease_ttl: seconds of the lease to ask for.
        connect_timeout: seconds for the first contact.
        address: where others reach this node, which may have to host the store; "": find out.

    Raises:
        ValueError: the endpoint names no store of ours.
    """
    if endpoint.backend == "etcd":
        from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore

        return EtcdStore(endpoint, run_id, lease_ttl, connect_timeout)
    if endpoint.backend == "c10d":
        from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import (
            EmbeddedStore,
        )

        return EmbeddedStore(endpoint, run_id, lease_ttl, connect_timeout, address)
    raise ValueError(f"there is no store of the kind {endpoint.backend!r}")


def store_complaint(endpoint: Endpoint) -> str:
    """What a store says is wrong with it, for people; "" if nothing is, or it cannot say.

    Args:
        endpoint: where it is.
    """
    if endpoint.backend == "etcd":
        from elastic_runtime.rendezvous.stores.etcd import connection_diagnosis

        return connection_diagnosis.etcd_complaint(endpoint)
    return ""
