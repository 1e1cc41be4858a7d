"""Getting to the TCPStore, or becoming its host; and what lasts as long as a connection does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.c10d.cells import Ageing
from elastic_runtime.rendezvous.stores.c10d.link import ANSWER, Link, host_store, listening_address
from elastic_runtime.rendezvous.stores.c10d.run_cells import NOTHING, Run

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.stores.c10d.link import HostedStore
    from elastic_runtime.rendezvous.stores.c10d.reader import Reader


@dataclass(eq=False)
class Session:
    """The time between two losses of the store.

    Attributes:
        store_id: lasts as long as the store's memory.
        link: for everything but waiting.
        run: the run's keys over it.
        ageing: of the leases that this node observes.
        reader: waits for what is announced to all.
        node_reader: waits for what nodes write, while this node leads.
        ended: former node readers that may still be waiting.
    """

    store_id: str
    link: Link
    run: Run
    ageing: Ageing = field(default_factory=Ageing)
    reader: Reader | None = None
    node_reader: Reader | None = None
    ended: list[Reader] = field(default_factory=list)

    @property
    def readers(self) -> list[Reader]:
        """All of them."""
        return [reader for reader in (self.reader, self.node_reader, *self.ended) if reader]

    @property
    def deaf(self) -> bool:
        """Whether a reader that is needed is not connected yet, which may take seconds."""
        return any(reader and not reader.listening for reader in (self.reader, self.node_reader))

    def dismiss_node_reader(self) -> None:
        """Ends the node reader, at the next announcement; makes one."""
        if self.node_reader is not None:
            self.node_reader.end()
            self.ended = [old for old in self.ended if old.is_alive()] + [self.node_reader]
            self.node_reader = None
            self.run.nodes_log.append(NOTHING)

    def wake_readers(self) -> None:
        """Wakes readers that wait for an announcement whose writer died before it made it."""
        for tape, reader in (
            (self.run.common_log, self.reader),
            (self.run.nodes_log, self.node_reader),
        ):
            if reader is not None and tape.length() > reader.position:
                tape.fill(reader.position + 1)

    def cut(self) -> None:
        """Ends all connections."""
        self.link.cut()
        for reader in self.readers:
            reader.cut()


class Connector:
    """Makes sessions.

    Args:
        endpoint: where the TCPStore is, or is to be.
        run_id: names the run.
        limit: seconds that connecting may take.
    """

    def __init__(self, endpoint: Endpoint, run_id: str, limit: float) -> None:
        host, _, port = endpoint.hosts[0].rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._run_id = run_id
        self._limit = min(ANSWER, limit)
        self._may_host = not endpoint.hosted_here
        self.where = f"{self._host}:{self._port}"
        self.hosted: HostedStore | None = None

    def link(self) -> Link:
        """A further connection.

        Raises:
            StoreUnavailable: nobody answers there.
        """
        return Link(self._host, self._port, self._limit)

    def open(self) -> Session:
        """Connects; hosts the store if it is to be on this machine and nobody answers.

        Raises:
            StoreUnavailable: nobody answers there.
        """
        try:
            link = self.link()
        except StoreUnavailable:
            if not self._take_over():
                raise
            link = self.link()
        try:
            run = Run(link, self._run_id)
            return Session(run.store_id(), link, run)
        except StoreUnavailable:
            link.cut()
            raise

    def _take_over(self) -> bool:
        if not self._may_host or self.hosted is not None:
            return False
        address = listening_address(self._host, self._port)
        if address is None:
            return False
        try:
            self.hosted = host_store(address, self._port)
        except OSError:  # another node of this machine was faster
            return False
        return True
