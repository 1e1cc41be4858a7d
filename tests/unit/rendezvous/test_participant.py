"""A node says goodbye to whoever listens, and waits for nobody who does not."""

from __future__ import annotations

import threading

import pytest

from elastic_runtime.protocol.records import NODES
from elastic_runtime.rendezvous.core.membership_events import Goodbye, Join
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from tests.processes import wait_for

PATIENCE = 60.0


@pytest.mark.parametrize("away", [False, True])
def test_a_store_that_is_away_is_not_waited_for(away: bool) -> None:
    server = MemoryServer()
    store = MemoryStore(server)
    part = Participant(store, Policy(2, 2), NodeIdentity("a", "127.0.0.1", 1), lambda notice: None)
    part.say(Join())
    wait_for(lambda: store.read(NODES), PATIENCE, "its key")
    if away:
        server.stop()
        wait_for(lambda: not part.state.contact.connected, PATIENCE, "the loss of the store")
    known: list[bool] = []

    def leave() -> None:
        part.say(Goodbye())
        known.append(part.wait_for_goodbye(3600.0))

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    leaving.join(PATIENCE)
    part.close()
    assert known == [not away]
