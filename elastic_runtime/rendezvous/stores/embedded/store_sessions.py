"""What lies in an embedded store: that of ``memory_store``, one for each run, and who is at it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import MainLoopSilent
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.stores.embedded.wire_protocol import Message

# Bytes of all values.
_MOST_STORED = 2**28


@dataclass(eq=False, slots=True)
class Session:
    """A client, from its first connection until it leaves or its lease ends.

    Attributes:
        store: what it does goes there.
        client: its present connection; None: it has none.
    """

    store: MemoryStore
    client: object = None


@dataclass(eq=False, slots=True)
class Sessions:
    """All runs, and all sessions.

    Attributes:
        held: why nothing is served; "": it is.
    """

    held: str = ""
    _runs: dict[str, MemoryServer] = field(default_factory=dict)
    _sessions: dict[tuple[str, str], Session] = field(default_factory=dict)

    def open(self, run: str, token: str, ttl: float) -> Session:
        """The session of that name, or a new one with a lease of so many seconds."""
        found = self._sessions.get((run, token))
        if found is None:
            server = self._runs.get(run)
            if server is None:
                # No version of a store that has forgotten may ever come again.
                server = MemoryServer(revision=secrets.randbits(40) << 10, patrolled=False)
                self._runs[run] = server
                if self.held:
                    server.stop(self.held)
            found = self._sessions[run, token] = Session(MemoryStore(server, ttl))
        return found

    def hold(self, why: str) -> None:
        """Serves nobody until ``go_on``; nothing is lost."""
        self.held = why
        for server in self._runs.values():
            server.stop(why)

    def go_on(self) -> None:
        """Serves again; no lease has ended meanwhile."""
        self.held = ""
        for server in self._runs.values():
            server.resume()

    def renew_all(self) -> None:
        """Gives every lease its whole time again."""
        for server in self._runs.values():
            server.renew_all()

    def look_at_leases(self) -> None:
        """Ends the leases whose time has come, and the sessions that have nothing left."""
        for server in self._runs.values():
            server.expire_due()
        over = [
            name
            for name, session in self._sessions.items()
            if session.client is None and not session.store.leased
        ]
        for name in over:
            self._sessions.pop(name).store.close()

    def answer(self, asked: str, message: Message, store: MemoryStore) -> Message:
        """Does what a client asks for.

        Raises:
            WireError: nobody asks so.
        """
        try:
            match asked:
                case "beat":
                    return {"leased": store.leased}
                case "apply":
                    transaction = wire.to_transaction(message)
                    stored = sum(server.size for server in self._runs.values())
                    if stored + sum(len(put.value) for put in transaction.puts) > _MOST_STORED:
                        return {"error": f"it is full: {_MOST_STORED >> 20} MiB"}
                    return {"ok": store.apply(transaction), "leased": store.leased}
                case "read":
                    entries = store.read(wire.field(message, "prefix", str))
                    return {"entries": wire.of_entries(entries)}
                case "runs":
                    return {"runs": sorted(run for run, one in self._runs.items() if one.size)}
                case "bye":
                    store.close()
                    return {}
        except MainLoopSilent as error:
            return {"error": str(error), "silent": True}
        except StoreUnavailable as error:
            return {"error": str(error)}
        raise wire.WireError(f"a request {asked!r}")
