"""Snapshots read from where they are: this node's memory, or that of another node's agent.

``protocol.snapshot_requests`` says how an agent is asked. Bytes arrive straight in the memory that
they are wanted in, and are verified there like those of any checkpoint.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.manifest import MANIFEST
from elastic_runtime.checkpoint.storage.storage_contract import Source
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.limits import SNAPSHOT_CONNECT_TIMEOUT, SNAPSHOT_READ_TIMEOUT
from elastic_runtime.protocol.peer_proof import NONCE, PROOF, SNAPSHOTS, Exchange, hello, new_nonce
from elastic_runtime.protocol.snapshot_requests import (
    HEADER,
    SnapshotMemory,
    SnapshotRequest,
    read_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_runtime.checkpoint.format.manifest import CheckpointId
    from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
    from elastic_runtime.checkpoint.storage.storage_contract import Reader

_MOST_AT_ONCE = 1 << 30  # bytes of a file that is read as a whole
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")


class PeerConnection:
    """A connection to the server of an agent; both sides know that the other one has the key."""

    def __init__(self, memory: SnapshotMemory, key: str) -> None:
        """Connects.

        Args:
            memory: the agent's.
            key: of the job.

        Raises:
            OSError: it does not answer, refuses this client, or is not an agent of this job.
        """
        place = (memory.host, memory.port)
        self._socket = socket.create_connection(place, timeout=SNAPSHOT_CONNECT_TIMEOUT)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = new_nonce()
            self._socket.sendall(hello(SNAPSHOTS) + nonce)
            exchange = Exchange(key, server=self._read(NONCE), client=nonce)
            self._socket.sendall(exchange.asking())
            if not exchange.is_answered(self._read(PROOF)):
                raise ConnectionError("it is no agent of this job")
            # From here on the kernel keeps the time, so that one call reads all that is wanted.
            self._socket.settimeout(None)
            limit = struct.pack("@ll", int(SNAPSHOT_READ_TIMEOUT), 0)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, limit)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, request: SnapshotRequest) -> tuple[int, int]:
        """Asks for a piece of a file.

        Returns:
            How many bytes follow, which ``fill`` reads, -1 if there is no such piece; and the size
            of the whole file.

        Raises:
            OSError: the server does not answer.
        """
        self._socket.sendall(request.encode())
        header = bytearray(HEADER.size)
        self.fill([memoryview(header)])
        count, size = HEADER.unpack(header)
        return count, size

    def _read(self, count: int) -> bytes:
        data = bytearray(count)
        self.fill([memoryview(data)])
        return bytes(data)

    def fill(self, buffers: Sequence[memoryview]) -> None:
        """Fills all buffers with what comes next.

        Raises:
            OSError: the server sends nothing more.
        """
        left = [buffer for buffer in buffers if buffer.nbytes]
        first = 0
        while first < len(left):
            # Waits for all of it: so the interpreter is hardly needed.
            span = left[first : first + _MOST_BUFFERS]
            count = self._socket.recvmsg_into(span, 0, socket.MSG_WAITALL)[0]
            if not count:
                raise ConnectionError("it has closed the connection")
            while first < len(left) and count >= left[first].nbytes:
                count -= left[first].nbytes
                first += 1
            if count:
                left[first] = left[first][count:]

    def close(self) -> None:
        """Closes the connections."""
        self._socket.close()


class ConnectionPool:
    """The connections of this process to one server: one for each thread that reads at a time."""

    def __init__(self, memory: SnapshotMemory, directory: str) -> None:
        """Remembers the server; nothing is connected yet.

        Args:
            memory: what it serves.
            directory: of this process' own agent, where the key is.
        """
        self.memory = memory
        self._directory = directory
        self._free: list[PeerConnection] = []
        self._lock = threading.Lock()

    def take(self) -> PeerConnection:
        """An unused connection: one that was returned, or a new one.

        Raises:
            OSError: the server cannot be reached, or the key not be read.
        """
        with self._lock:
            if self._free:
                return self._free.pop()
        return PeerConnection(self.memory, read_key(self._directory))

    def give(self, connection: PeerConnection) -> None:
        """Takes a connection back, of which no answer is expected any longer."""
        with self._lock:
            self._free.append(connection)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns a failure of the network into an error for people.

        Raises:
            DamagedCheckpoint: for any ``OSError`` in the body.
        """
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            raise DamagedCheckpoint(
                f"the snapshots of {self.memory.node} cannot be reached at {self.memory.host}, "
                f"port {self.memory.port}: {why}"
            ) from error

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()


class PeerFile:
    """A file of another node, which is best read from front to back."""

    def __init__(
        self,
        pool: ConnectionPool,
        file: str,
        where: str,
        count: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Asks for nothing yet.

        Args:
            pool: to the node.
            file: as its server knows it.
            where: for messages.
            count: called with the number of bytes that have arrived.
        """
        self.where = where
        self._pools = pool
        self._file = file
        self._count = count
        self._connection: PeerConnection | None = None  # on which what is expected comes
        self._at = self._left = 0
        self._lock = threading.Lock()

    def expect(self, offset: int, length: int) -> None:
        """Asks for all of it at once, so that no request waits for another."""
        with self._lock:
            self._expect(offset, length)

    def readinto(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fills all buffers from ``offset`` on."""
        wanted = sum(buffer.nbytes for buffer in buffers)
        if not wanted:
            return
        with self._lock:
            if self._connection is None or offset != self._at or wanted > self._left:
                self._expect(offset, wanted)
            assert self._connection is not None
            with self._pools.explained():
                try:
                    self._connection.fill(buffers)
                except OSError:
                    self._drop()
                    raise
            self._at += wanted
            self._left -= wanted
            if not self._left:
                self._pools.give(self._connection)
                self._connection = None
        self._count(wanted)

    def size(self) -> int:
        """In bytes; -1 if there is no such file."""
        count, size, connection = self._ask(SnapshotRequest(self._file))
        self._pools.give(connection)
        return size if count == 0 else -1

    def close(self) -> None:
        """Gives up what is expected."""
        with self._lock:
            self._drop()

    def _expect(self, offset: int, length: int) -> None:
        self._drop()
        count, _, connection = self._ask(SnapshotRequest(self._file, offset, length))
        if count != length:
            self._pools.give(connection)
            raise DamagedCheckpoint(f"{self.where} is damaged: it is missing or too short")
        self._connection, self._at, self._left = connection, offset, length

    def _ask(self, request: SnapshotRequest) -> tuple[int, int, PeerConnection]:
        with self._pools.explained():
            connection = self._pools.take()
            try:
                return *connection.ask(request), connection
            except OSError:
                connection.close()
                raise

    def _drop(self) -> None:
        # What is still on its way cannot be called back.
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SnapshotSource(Source):
    """One snapshot, whose files are spread over the memory of several nodes.

    Attributes:
        fetched: bytes that have come from other nodes so far.
    """

    def __init__(
        self,
        own: LocalStorage,
        key: str,
        others: Mapping[str, SnapshotMemory],
        nodes: str,
        directory: str,
    ) -> None:
        """Remembers where everything is.

        Args:
            own: the snapshots of this node.
            key: the directory of these snapshots in the memory of any node.
            others: by the names of those files that this node lacks, a node that has it.
            nodes: that take part, for messages.
            directory: of this process' own agent.
        """
        self.where = f"memory of {nodes}"
        self.fetched = 0
        self._own = own
        self._key = key
        self._pools: dict[SnapshotMemory, ConnectionPool] = {}
        for memory in others.values():
            self._pools.setdefault(memory, ConnectionPool(memory, directory))
        self._others = others
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connections."""
        for pool in self._pools.values():
            pool.close()

    def has_manifest(self, which: CheckpointId) -> bool:
        remote = self._remote(which, MANIFEST)
        if remote is None:
            return self._own.has_manifest(which)
        with suppress(DamagedCheckpoint):
            return remote.size() >= 0
        return True  # it is not known

    def _manifest_bytes(self, which: CheckpointId) -> bytes | None:
        if self._remote(which, MANIFEST) is None:
            return self._own._manifest_bytes(which)
        return self.read_bytes(which, MANIFEST)

    def read_bytes(self, which: CheckpointId, name: str) -> bytes:
        remote = self._remote(which, name)
        if remote is None:
            return self._own.read_bytes(which, name)
        size = remote.size()
        if not 0 <= size <= _MOST_AT_ONCE:
            raise DamagedCheckpoint(f"{remote.where} is missing")
        data = bytearray(size)
        remote.readinto(0, [memoryview(data)])
        return bytes(data)

    @contextmanager
    def reader(self, which: CheckpointId, name: str) -> Iterator[Reader]:
        remote = self._remote(which, name)
        if remote is None:
            with self._own.reader(which, name) as reader:
                yield reader
        else:
            try:
                yield remote
            finally:
                remote.close()

    def sizes(self, which: CheckpointId) -> dict[str, int]:
        sizes = self._own.sizes(which)
        for name in self._others:
            remote = self._remote(which, name)
            if name != MANIFEST and remote is not None and (size := remote.size()) >= 0:
                sizes[name] = size
        return sizes

    def _remote(self, which: CheckpointId, name: str) -> PeerFile | None:
        memory = self._others.get(name)
        if memory is None:
            return None
        file, where = f"{self._key}/{which.name}/{name}", f"{which.name}/{name} of {memory.node}"
        return PeerFile(self._pools[memory], file, where, self._count)

    def _count(self, size: int) -> None:
        with self._lock:
            self.fetched += size
