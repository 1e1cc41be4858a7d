"""The store that the process hosts with which a job was started."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from elastic_runtime.cli.run.store_target import EmbeddedTarget, embedded_endpoint
from elastic_runtime.errors import UsageError
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
from elastic_runtime.system.listening import listen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.config import Endpoint

# An address reserved for documentation: a datagram socket "connected" to it sends nothing, but
# tells which of our addresses leads outward.
_OUTWARD = ("192.0.2.1", 9)


@contextmanager
def hosted(target: EmbeddedTarget, local_addr: str) -> Iterator[Endpoint]:
    """Hosts a store while the block runs.

    Args:
        target: where to listen.
        local_addr: the address that others are to use; "" means: find out.

    Returns:
        Where the store is reached.

    Raises:
        UsageError: the address is not of this machine, or the port is taken.
    """
    store = StoreServer(_listen(target))
    try:
        yield embedded_endpoint(_reached_at(target, local_addr), store.port)
    finally:
        store.close()


def _listen(target: EmbeddedTarget) -> socket.socket:
    try:
        return listen(target.host, target.port)
    except OSError as error:
        if target.port and not target.only_there:
            return listen(target.host, 0)
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
