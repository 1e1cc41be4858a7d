"""A store that has been closed does nothing more, also where its loop goes on for another one."""

from __future__ import annotations

import asyncio

from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from elastic_runtime.rendezvous.stores.embedded.event_loop import Loop
from tests import processes
from tests.etcd_server import free_port

PATIENCE = 60.0


def test_a_closed_store_leaves_nothing_on_the_loop() -> None:
    port = free_port()
    loop = Loop()
    try:
        store = EmbeddedStore(
            Endpoint("c10d", (f"127.0.0.1:{port}",)), "a run", 5.0, PATIENCE, "127.0.0.1"
        )
        store.start("nodes/x", lambda event: None)
        assert store.read("") == ()
        store.close()
        processes.wait_for(lambda: not asyncio.all_tasks(loop.loop), PATIENCE, "the end of tasks")
    finally:
        loop.release()
