"""What somebody does who reaches the ports of a job, and does not belong to it."""

from __future__ import annotations

import select
import shlex
import socket
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_runtime.endpoint import parse_endpoint
from elastic_runtime.rendezvous.stores.open_store import open_store
from tests import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from elastic_runtime.rendezvous.store_contract import Store

_PATIENCE = 60.0
_LISTENS = "0A"  # in /proc/net/tcp

# What scanners, browsers, and half-spoken protocols say.
GARBAGE = (
    b"",
    b"\n",
    b"\0" * 4096,
    b"\xff" * 9,
    b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # how TLS begins
    b'{"node": "a"}\n',
    bytes(range(256)) * 256,
)


class Port(NamedTuple):
    """Where somebody listens."""

    address: str
    port: int


def listening(pids: Iterable[int]) -> set[Port]:
    """Where these processes listen for TCP."""
    sockets = {link for pid in pids for link in processes.descriptors(pid)}
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTENS and f"socket:[{words[9]}]" in sockets:
                address, _, port = words[1].partition(":")
                raw = bytes.fromhex(address)  # as words of the machine
                raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
                found.add(Port(socket.inet_ntop(family, raw), int(port, 16)))
    return found


def unused() -> int:
    """A port at which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def says(place: Port, said: bytes, patience: float = _PATIENCE) -> bytes:
    """What somebody hears who says this, and nothing more.

    Args:
        place: where.
        said: all of it.
        patience: seconds to listen; a server may also wait for more for ever.
    """
    heard = b""
    with suppress(OSError):  # it hangs up while we still speak, for one
        with socket.create_connection(place, timeout=patience) as line:
            line.sendall(said)
            line.shutdown(socket.SHUT_WR)
            while data := line.recv(4096):
                heard += data
    return heard


@contextmanager
def speaking(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Somebody who listens, and serves one connection after the other; yields ``host:port``."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def slow(places: Iterable[Port], count: int) -> Iterator[None]:
    """So many clients at each place that say one byte, and then nothing."""
    with ExitStack() as held:
        for place in places:
            for _ in range(count):
                with suppress(OSError):
                    line = socket.create_connection(place, timeout=_PATIENCE)
                    held.enter_context(line).send(b"x")
        yield


@contextmanager
def store_of(command: Mapping[str, Any]) -> Iterator[Store]:
    """The store of the job whose event ``job.join_command`` this is."""
    words = shlex.split(command["command"])
    endpoint, run = (words[words.index(flag) + 1] for flag in ("--rdzv-endpoint", "--run-id"))
    with closing(open_store(parse_endpoint(endpoint), run, 10, 10)) as store:
        store.start("nodes/nobody", lambda event: None)
        yield store


class Recorder:
    """Passes one conversation on between a client and a server.

    Attributes:
        port: where the client is to connect.
        of_client, of_server: what each of them has said, once the conversation is over.
    """

    def __init__(self, server: Port) -> None:
        self.of_client = self.of_server = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._pass_on, args=(server,), daemon=True)
        self._thread.start()

    def _pass_on(self, place: Port) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(place, timeout=_PATIENCE) as server:
            other = {client: server, server: client}
            while True:
                ready, _, _ = select.select(list(other), [], [], _PATIENCE)
                if not ready:
                    return
                for one in ready:
                    data = one.recv(4096)
                    if not data:
                        return
                    if one is client:
                        self.of_client += data
                    else:
                        self.of_server += data
                    other[one].sendall(data)

    def close(self) -> None:
        """Waits for the end of the conversation."""
        self._thread.join(_PATIENCE)
        self._listener.close()
