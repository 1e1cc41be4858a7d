"""The embedded store: a c10d TCPStore hosted by the process that a job was started with."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from elastic_runtime.cli.flags.torchrun_parser import import_torch
from elastic_runtime.cli.run.store_target import EmbeddedTarget, embedded_endpoint
from elastic_runtime.config import LOOPBACK
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import TCPStore

# An address reserved for documentation: a datagram socket "connected" to it sends nothing, but
# tells which of our addresses leads outward.
_OUTWARD = ("192.0.2.1", 9)
_TIMEOUT = timedelta(seconds=30)


class EmbeddedStore:
    """A store that listens from the start, and answers once it is open.

    To open it takes torch, whose import takes a second or two; whoever connects before that waits.

    Args:
        target: where to listen.
        local_addr: the address that others are to use; "" means: find out.

    Attributes:
        endpoint: where the store is reached.

    Raises:
        UsageError: the address is not of this machine, or the port is taken.
    """

    def __init__(self, target: EmbeddedTarget, local_addr: str) -> None:
        self._host = target.host or LOOPBACK
        self._listener = _listen(target)
        self._port = self._listener.getsockname()[1]
        self._store: TCPStore | None = None
        self.endpoint = embedded_endpoint(_reached_at(target, local_addr), self._port)

    def open(self) -> None:
        """Begins to answer."""
        import_torch()
        from torch.distributed import TCPStore

        # torch would listen at every address; a socket of ours keeps the store where it belongs.
        self._store = TCPStore(
            self._host,
            self._port,
            is_master=True,
            wait_for_workers=False,
            timeout=_TIMEOUT,
            master_listen_fd=self._listener.detach(),
        )

    def close(self) -> None:
        """Ends the store."""
        self._store = None
        self._listener.close()


@contextmanager
def listening(target: EmbeddedTarget, local_addr: str) -> Iterator[EmbeddedStore]:
    """Has an embedded store while the block runs; see ``EmbeddedStore``."""
    store = EmbeddedStore(target, local_addr)
    try:
        yield store
    finally:
        store.close()


def _listen(target: EmbeddedTarget) -> socket.socket:
    try:
        if not target.host and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", target.port), family=socket.AF_INET6, dualstack_ipv6=True
            )
        family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
        return socket.create_server((target.host, target.port), family=family)
    except OSError as error:
        where = f"{target.host or 'every address'}, port {target.port or 'any'}"
        raise UsageError(
            f"the embedded store cannot listen at {where}: {error.strerror or error}; "
            "choose another with --listen ADDR:PORT"
        ) from None


def _reached_at(target: EmbeddedTarget, local_addr: str) -> str:
    if target.host and target.host not in ("0.0.0.0", "::"):
        return target.host
    return local_addr or outward_address()


def outward_address() -> str:
    """This machine's address as other machines see it, as far as its routes tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_OUTWARD)
            return str(probe.getsockname()[0])
        except OSError:  # no route out: a name is the best that is left
            return socket.gethostname()
