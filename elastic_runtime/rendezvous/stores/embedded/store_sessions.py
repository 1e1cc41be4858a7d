"""The contents of an embedded store: one ``memory_store`` for each run, and their clients."""

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
    """A client, from its first connection until it says goodbye or its lease ends.

    Attributes:
        store: performs what it asks for.
        client: its present connection; None: it has none.
    """

    store: MemoryStore
    client: object = None


@dataclass(eq=False, slots=True)
class Sessions:
    """All runs, and all sessions.

    Attributes:
        paused: why no request is served; "": requests are served.
    """

    paused: str = ""
    _runs: dict[str, MemoryServer] = field(default_factory=dict)
    _sessions: dict[tuple[str, str], Session] = field(default_factory=dict)

    def open(self, run: str, token: str, ttl: float) -> Session:
        """The session of that name, or a new one with a lease of so many seconds."""
        found = self._sessions.get((run, token))
        if found is None:
            server = self._runs.get(run)
            if server is None:
                # A version of a store that was lost must never be used again.
                server = MemoryServer(revision=secrets.randbits(40) << 10, patrolled=False)
                self._runs[run] = server
                if self.paused:
                    server.stop(self.paused)
            found = self._sessions[run, token] = Session(MemoryStore(server, ttl))
        return found

    def pause(self, why: str) -> None:
        """Serves no request until ``resume``; nothing is lost."""
        self.paused = why
        for server in self._runs.values():
            server.stop(why)

    def resume(self) -> None:
        """Serves requests again; no lease has ended meanwhile."""
        self.paused = ""
        for server in self._runs.values():
            server.resume()

    def renew_all(self) -> None:
        """Starts the time of every lease again."""
        for server in self._runs.values():
            server.renew_all()

    def end_overdue(self) -> None:
        """Ends leases whose time is over, and sessions without a connection and a lease."""
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
        """Performs a request; returns the answer.

        Raises:
            WireError: there is no such request.
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
