"""How torch's TCPStore is reached and hosted: what leans on its undocumented parts.

A test beside each fails when torch changes it. torch itself is imported only when something here
is called.
"""

from __future__ import annotations

import importlib
import os
import socket
import struct
import time
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

from elastic_runtime.backoff import Backoff
from elastic_runtime.system.listening import listen, where_reached

if TYPE_CHECKING:
    from torch.distributed import TCPStore

# Between two attempts on a port that does not listen yet, in seconds: first and longest.
_LOOKS = Backoff(first=0.002, longest=0.05, factor=1.2)


def host_where_reached() -> None:
    """Has ``env://`` and ``tcp://`` wait for the store's port, and host it at its address only.

    A client of TCPStore that is refused sleeps for some 0.3 to 1.5 s before it tries again. Warm
    workers start within milliseconds of each other, so that half of them come too early: measured
    with two ranks, ``init_process_group`` took 17 ms or 300 to 640 ms. Both schemes make their
    store through this one function; there is no public place to wait in.

    The store of a round answers every client, and torch would listen at all addresses.
    """
    # torch.distributed has a function of that name, which hides the module.
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    create = rendezvous._create_c10d_store

    @wraps(create)
    def made(
        hostname: str,
        port: int,
        rank: int,
        world_size: int,
        timeout: timedelta,
        use_libuv: bool = True,
    ) -> Any:
        if rank > 0:
            await_listener(hostname, int(port), timeout.total_seconds())
        elif store := _hosted(hostname, int(port), world_size, timeout, use_libuv):
            return store
        return create(hostname, port, rank, world_size, timeout, use_libuv)

    rendezvous._create_c10d_store = made


def _hosted(
    host: str, port: int, world_size: int, timeout: timedelta, use_libuv: bool
) -> Any | None:
    """The store that torch would host for its rank 0, at this address only; None: torch is to."""
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address = where_reached(host).address
    if agents or not address or not port:
        return None
    try:
        listener = listen(address, port)
    except OSError:  # perhaps this process hosts it already, which torch knows
        return None
    from torch.distributed import TCPStore

    return TCPStore(
        address,
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
        use_libuv=use_libuv,
    )


def await_listener(host: str, port: int, timeout: float) -> bool:
    """Waits until a process listens at an address.

    Args:
        host, port: the address.
        timeout: seconds to wait at most; if none listens, the caller's connection fails.

    Returns:
        Whether one listens.
    """
    deadline = time.monotonic() + timeout
    looks = 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        try:
            socket.create_connection((host, port), timeout=left).close()
        except OSError:
            looks += 1
            time.sleep(min(_LOOKS.pause(looks), left))
        else:
            return True


def greet_store(host: str, port: int, timeout: float) -> bool:
    """Waits until the server at an address answers as a TCPStore does, or hangs up.

    torch's own client waits for its first answer where nothing can end it, and the end of the
    process waits for that. A port that accepts and then says nothing is found here instead.

    What its client says first is undocumented: a number that both know, and a ping with another
    one, which comes back. A torch that says something else one day hangs up; its client is to say
    what is wrong then.

    Args:
        host, port: where.
        timeout: seconds to wait at most, for the connection and for the answer.

    Returns:
        Whether it was the answer of a TCPStore.

    Raises:
        OSError: no process listens there, or none answers in time.
    """
    validate, known, ping = 0, 0x3C85F7CE, 13
    number = os.urandom(4)
    with socket.create_connection((host, port), timeout=timeout) as line:
        line.sendall(struct.pack("=BIB", validate, known, ping) + number)
        try:
            return line.recv(len(number)) == number
        except ConnectionResetError:
            return False


def connect_store(host: str, port: int, timeout: float) -> TCPStore:
    """A client of a TCPStore that answers; torch itself would try a refused port again and again.

    Args:
        host, port: where it is.
        timeout: seconds for its first answer, and once more for the connection.

    Raises:
        OSError: no process listens there, or none answers in time.
        RuntimeError: the server is no TCPStore, or ends at this moment.
    """
    from torch.distributed import TCPStore

    greet_store(host, port, timeout)
    limit = timedelta(seconds=timeout)
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
