"""The agent's memory for snapshots of the training state: it outlives workers.

Workers write their snapshots into a directory in tmpfs that belongs to the agent. A server reads
them to the workers of other nodes of the job only: see ``protocol.snapshot_requests``. Snapshots
are removed when the agent ends: those of an agent that was killed by a process that outlives it
(``reaper``), and if that was killed as well by the next agent on the machine.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from elastic_runtime.agent import reaper
from elastic_runtime.agent.runtime_dir import RuntimeDir, sweep
from elastic_runtime.limits import MAX_SNAPSHOT_CLIENTS
from elastic_runtime.protocol.peer_proof import (
    NONCE,
    PROOF,
    SNAPSHOTS,
    Exchange,
    hello,
    key_for,
    new_nonce,
)
from elastic_runtime.protocol.snapshot_requests import (
    HEADER,
    MAX_REQUEST,
    REFUSED,
    SnapshotMemory,
    SnapshotRequest,
    write_key,
)
from elastic_runtime.system import threads
from elastic_runtime.system.listening import listen
from elastic_runtime.system.machine import boot_id, total_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.config import JobConfig

_TMPFS = "/dev/shm"
_PREFIX = "elastic-snapshots-"
# Seconds: to show that one has the key; between two requests; for what is sent to be taken.
_PROOF_TIMEOUT = 5.0
_IDLE = 120.0
_STALL = 30.0
# Until all workers of an agent that was killed have ended as well; for the end of the reaper.
_REAPER_DELAY = 2.0
_REAPER_END_TIMEOUT = 1.0
_HELLO = hello(SNAPSHOTS)
_PIECE = 512 << 10  # stays in the processor's cache


class SnapshotHost:
    """Keeps the snapshots of this node's workers in memory, and serves them to other nodes.

    Attributes:
        memory: where it is, for the workers; None if there is none.
    """

    def __init__(self, config: JobConfig, address: str, listens: str = "") -> None:
        """Makes the directory and begins to serve it.

        Args:
            config: the settings.
            address: where other nodes reach this one.
            listens: where to listen for them, ``""`` for all interfaces.
        """
        self.memory: SnapshotMemory | None = None
        self._directory: RuntimeDir | None = None
        self._server: SnapshotServer | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._key = ""
        if not _is_tmpfs(_TMPFS):
            return
        sweep(_TMPFS, _PREFIX)  # also if this agent has none of its own
        limit = config.snapshot_memory.within(total_memory())
        if not limit:
            return
        self._directory = RuntimeDir(_TMPFS, _PREFIX)
        self._reaper = _follow(self._directory.path)
        self._server = SnapshotServer(self._directory.path, lambda: self._key, listens)
        self.memory = SnapshotMemory(
            directory=self._directory.path,
            limit=limit,
            host=address,
            port=self._server.port,
            node=config.node_name,
            machine=boot_id(),
            topology=config.node_topology,
        )

    def admit(self, secret: str) -> None:
        """Serves those who know the job's secret from now on, and lets the own workers know it.

        Args:
            secret: the job's; "": no one is served.
        """
        key = key_for(SNAPSHOTS, secret)
        if self._directory is None or key == self._key:
            return
        self._key = key
        # Without it no copies are made; the workers that want to make them report that.
        with suppress(OSError):
            write_key(self._directory.path, key)

    def close(self) -> None:
        """Stops serving, and gives the memory back."""
        if self._server is not None:
            self._server.close()
        if self._directory is not None:
            self._directory.remove()
        if self._reaper is not None:
            with suppress(subprocess.TimeoutExpired):  # it has nothing left to do, and ends
                self._reaper.wait(_REAPER_END_TIMEOUT)


def _follow(directory: str) -> subprocess.Popen[bytes] | None:
    """Starts the process that removes the directory if this one is killed; None: it cannot."""
    command = [sys.executable, "-IS", reaper.__file__, directory, str(_REAPER_DELAY)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to the agent's group is not for it
        )
    except OSError:
        return None  # the next agent on this machine removes it


def _is_tmpfs(path: str) -> bool:
    """Whether what is written there stays in memory."""
    try:
        with open("/proc/self/mounts") as mounts:
            kinds = [line.split()[2] for line in mounts if line.split()[1] == path]
    except (OSError, IndexError):
        return False
    return kinds[-1:] == ["tmpfs"] and os.access(path, os.W_OK | os.X_OK)


class SnapshotServer:
    """Serves the files of a directory, read-only, to those who have the key.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        directory: str,
        key: Callable[[], str],
        address: str = "",
        *,
        patience: float = _PROOF_TIMEOUT,
    ) -> None:
        """Begins to listen.

        Args:
            directory: of which nothing else is served.
            key: gives that of the job, "" as long as it is not known.
            address: where to listen, ``""`` for all interfaces.
            patience: seconds that a client may take to show that it has the key.
        """
        self._directory = directory
        self._key = key
        self._patience = patience
        self._clients: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._socket = listen(address)
        self.port: int = self._socket.getsockname()[1]
        threads.spawn(self._serve, name="snapshot-server")

    def close(self) -> None:
        """Stops listening and closes all connections."""
        self._closed = True
        for line in (self._socket, *self._clients_now()):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _clients_now(self) -> list[socket.socket]:
        with self._lock:
            return list(self._clients)

    def _serve(self) -> None:
        while not self._closed:
            try:
                client, _ = self._socket.accept()
            except OSError:
                if not self._closed:
                    time.sleep(0.1)  # out of descriptors, perhaps: others may give some back
                continue
            with self._lock:
                full = len(self._clients) >= MAX_SNAPSHOT_CLIENTS
                if not full:
                    self._clients.add(client)
            if full:
                client.close()
                continue
            try:
                threads.spawn(self._talk, client, name="snapshot-client")
            except RuntimeError:  # no thread for this one: it asks elsewhere, or again
                self._forget(client)

    def _talk(self, client: socket.socket) -> None:
        try:
            with client, suppress(OSError, ValueError):
                if self._welcome(client):
                    self._answer_all(client)
        finally:
            self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        client.close()
        with self._lock:
            self._clients.discard(client)

    def _welcome(self, client: socket.socket) -> bool:
        deadline = time.monotonic() + self._patience
        if _read(client, len(_HELLO), deadline) != _HELLO:
            return False
        nonce = _read(client, NONCE, deadline)
        exchange = Exchange(self._key(), server=new_nonce(), client=nonce)
        client.sendall(exchange.server)
        if not exchange.is_asked(_read(client, PROOF, deadline)):
            return False
        client.sendall(exchange.answering())
        return True

    def _answer_all(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # The kernel keeps the time, so that one call sends all that was asked for.
        client.settimeout(None)
        for option, seconds in ((socket.SO_RCVTIMEO, _IDLE), (socket.SO_SNDTIMEO, _STALL)):
            client.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), 0))
        pending = b""
        while True:
            while b"\n" not in pending:
                if len(pending) > MAX_REQUEST:
                    return
                data = client.recv(MAX_REQUEST)
                if not data:
                    return
                pending += data
            line, _, pending = pending.partition(b"\n")
            self._answer(client, SnapshotRequest.decode(line))

    def _answer(self, client: socket.socket, request: SnapshotRequest) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(os.path.join(self._directory, request.file), flags)
        except OSError:
            client.sendall(HEADER.pack(REFUSED, 0))
            return
        try:
            found = os.fstat(file)
            end = request.offset + request.length
            if not stat.S_ISREG(found.st_mode) or end > found.st_size:
                client.sendall(HEADER.pack(REFUSED, found.st_size))
                return
            more = socket.MSG_MORE if request.length else 0
            client.sendall(HEADER.pack(request.length, found.st_size), more)
            _send(client, file, request.offset, end)
        finally:
            os.close(file)


def _send(client: socket.socket, file: int, position: int, end: int) -> None:
    """Sends a part of a file.

    ``sendfile`` takes twice as long: what it sends is received page by page. A mapped file would
    be a little faster, and would end this process if somebody made the file shorter.
    """
    buffer = memoryview(bytearray(min(_PIECE, end - position)))
    while position < end:
        piece = buffer[: end - position]
        count = os.preadv(file, [piece], position)
        if not count:
            raise OSError("the file has become shorter")
        client.sendall(piece[:count])
        position += count


def _read(client: socket.socket, count: int, deadline: float) -> bytes:
    """So many bytes, fewer if the client disconnects; none after ``deadline`` (monotonic)."""
    data = b""
    while len(data) < count:
        client.settimeout(max(0.001, deadline - time.monotonic()))
        part = client.recv(count - len(data))
        if not part:
            break
        data += part
    return data
