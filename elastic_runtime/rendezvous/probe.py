"""Probes: asking a node whether it lives, without the store.

Each agent answers on a TCP port. The question is one line of JSON, the answer too: who answers,
and how far it has come. Only a refused connection, or an answer from another life, proves a death;
silence proves nothing, and the lease decides then.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

from elastic_runtime.rendezvous.state import ALIVE, OTHER, REFUSED, SILENT

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_LINE = 65536
# One silent client must not keep the next one waiting for long.
_CLIENT_PATIENCE = 1.0


class ProbeServer:
    """Answers probes from a thread of its own.

    Args:
        address: where to listen, ``""`` for all interfaces.
        answer: gives the fields of the answer; must hold ``node``, this life's uuid.
    """

    def __init__(self, address: str, answer: Callable[[], dict[str, Any]]) -> None:
        self._answer = answer
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, 0))
        # A fault makes many members ask at once; a full backlog would look like a death.
        self._socket.listen(1024)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="probe-server", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                try:
                    client.settimeout(_CLIENT_PATIENCE)
                    _read_line(client)
                    client.sendall(json.dumps(self._answer()).encode() + b"\n")
                except Exception:  # one answer that fails must not be the last one
                    continue

    def close(self) -> None:
        """Stops listening: from now on probes are refused."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


def _read_line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(4096)
        if not part or len(data) > _MAX_LINE:
            break
        data += part
    return data


def ask(address: str, port: int, timeout: float) -> dict[str, Any] | None:
    """Asks the agent at ``address:port``.

    Args:
        address: host name or address.
        port: its probe port.
        timeout: seconds for the whole exchange.

    Returns:
        Its answer; None if what answered is no agent.

    Raises:
        ConnectionRefusedError: nothing listens there.
        OSError: no answer (``TimeoutError`` included).
    """
    with socket.create_connection((address, port), timeout=timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(b'{"hello":"elastic"}\n')
        line = _read_line(connection)
    if not line:
        # Accepted by the kernel, then closed: the process is on its way out, or in.
        raise ConnectionResetError("closed without an answer")
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def probe(node: str, address: str, port: int, timeout: float) -> str:
    """Probes for one life of a node.

    Returns:
        ``alive``, ``refused``, ``other`` (another life, or another program) or ``silent``.
    """
    try:
        body = ask(address, port, timeout)
    except ConnectionRefusedError:
        return REFUSED
    except OSError:
        return SILENT
    return ALIVE if body is not None and body.get("node") == node else OTHER
