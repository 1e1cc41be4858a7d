"""Clients of servers on this machine."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from contextlib import suppress

LOCAL = "127.0.0.1"
PATIENCE = 60.0  # of a test


def connect(port: int) -> socket.socket:
    return socket.create_connection((LOCAL, port), timeout=PATIENCE)


def everything(line: socket.socket) -> bytes:
    """All that a server says until it hangs up."""
    said = b""
    with suppress(ConnectionResetError):
        while part := line.recv(65536):
            said += part
    return said


def get(port: int, path: str) -> tuple[int, str]:
    """How a server of HTTP answers."""
    try:
        with urllib.request.urlopen(f"http://{LOCAL}:{port}{path}", timeout=PATIENCE) as answered:
            return answered.status, answered.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
