"""The server of snapshots gives its files to those who have the key, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent import snapshot_server
from elastic_runtime.agent.snapshot_server import SnapshotHost, SnapshotServer
from elastic_runtime.checkpoint.snapshot.peer_reader import ConnectionPool, PeerConnection, PeerFile
from elastic_runtime.config import MemoryLimit
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.protocol.peer_proof import (
    NONCE,
    PROOF,
    SNAPSHOTS,
    Exchange,
    hello,
    key_for,
    new_nonce,
    new_secret,
)
from elastic_runtime.protocol.snapshot_requests import (
    HEADER,
    MAX_LENGTH,
    MAX_REQUEST,
    REFUSED,
    SnapshotMemory,
    SnapshotRequest,
    read_key,
    write_key,
)
from tests import processes
from tests.strangers import GARBAGE, Port, says
from tests.unit.agent.jobs import job
from tests.unit.programs import waiting

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

KEY = key_for(SNAPSHOTS, new_secret())
FILE = "0123456789abcdef/step-3.term-1/rank-0.distcp"
CONTENT = bytes(range(256)) * 4096
DEADLINE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SnapshotServer]:
    path = tmp_path / "mine" / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    (tmp_path / "secrets").write_text("not for you")
    write_key(str(tmp_path), KEY)  # of a client
    made = SnapshotServer(str(tmp_path / "mine"), lambda: KEY, "127.0.0.1", patience=0.2)
    yield made
    made.close()


@pytest.fixture
def pool(server: SnapshotServer, tmp_path: Path) -> Iterator[ConnectionPool]:
    pool = ConnectionPool(memory(server), str(tmp_path))
    yield pool
    pool.close()


def memory(server: SnapshotServer) -> SnapshotMemory:
    return SnapshotMemory("", 0, "127.0.0.1", server.port, "n0", "m0")


def size(server: SnapshotServer, file: str = FILE) -> int:
    """What a client like any other is told."""
    connection = PeerConnection(memory(server), KEY)
    try:
        count, size = connection.ask(SnapshotRequest(file))
        return size if count == 0 else -1
    finally:
        connection.close()


def connect(server: SnapshotServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)


def admitted(server: SnapshotServer) -> socket.socket:
    connection = connect(server)
    admit(connection)
    return connection


def admit(connection: socket.socket) -> tuple[bytes, bytes]:
    """Shows that one has the key; what both sides have said."""
    nonce = new_nonce()
    connection.sendall(hello(SNAPSHOTS) + nonce)
    exchange = Exchange(KEY, server=read(connection, NONCE), client=nonce)
    connection.sendall(exchange.asking())
    answer = read(connection, PROOF)
    assert exchange.is_answered(answer)
    return hello(SNAPSHOTS) + nonce + exchange.asking(), exchange.server + answer


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return data


def ended(connection: socket.socket) -> bool:
    """Whether the server has hung up, once it has."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def test_pieces_of_files(pool: ConnectionPool) -> None:
    file = PeerFile(pool, FILE, "it")
    assert file.size() == len(CONTENT)
    parts = [bytearray(1), bytearray(0), bytearray(300_000), bytearray(7)]
    file.readinto(100, [memoryview(part) for part in parts])
    assert b"".join(parts) == CONTENT[100 : 100 + 300_008]
    end = bytearray(10)
    file.readinto(len(CONTENT) - 10, [memoryview(end)])
    assert end == CONTENT[-10:]
    parts = [bytearray(3) for _ in range(3000)]  # many in one question
    file.readinto(1, [memoryview(part) for part in parts])
    assert b"".join(parts) == CONTENT[1:9001]


def test_what_is_expected_and_what_is_read_after_all(pool: ConnectionPool) -> None:
    file = PeerFile(pool, FILE, "it")
    file.expect(1000, 5000)
    for offset, length in [(1000, 2000), (3000, 3000), (1000, 10), (7, 100), (107, 20)]:
        part = bytearray(length)
        file.readinto(offset, [memoryview(part)])
        assert part == CONTENT[offset : offset + length]
    file.expect(0, len(CONTENT))
    file.close()


def test_what_is_not_there(pool: ConnectionPool) -> None:
    buffer = memoryview(bytearray(10))
    file = PeerFile(pool, FILE, "it")
    with pytest.raises(DamagedCheckpoint, match="it is missing or too short"):
        file.readinto(len(CONTENT) - 9, [buffer])
    for other in (FILE.replace("rank-0", "rank-1"), FILE.replace("step-3", "step-4")):
        with pytest.raises(DamagedCheckpoint, match="it is missing or too short"):
            PeerFile(pool, other, "it").readinto(0, [buffer])
    # A refusal costs nobody the connection.
    file.readinto(0, [buffer])


@pytest.mark.parametrize("key", [key_for(SNAPSHOTS, "wrong"), key_for(SNAPSHOTS, "")])
def test_the_key_is_needed(server: SnapshotServer, key: str) -> None:
    with pytest.raises(OSError, match=r"closed the connection|reset"):
        PeerConnection(memory(server), key)
    assert size(server) == len(CONTENT)


def test_what_was_overheard_opens_nothing(server: SnapshotServer) -> None:
    with connect(server) as connection:
        said, heard = admit(connection)
    place = Port("127.0.0.1", server.port)
    assert len(says(place, said)) == NONCE
    for one in (heard, *GARBAGE):
        assert says(place, one) == b""
    # And a server that knows nothing cannot pretend to be one.
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def pretend() -> None:
            client, _ = stranger.accept()
            with client, suppress(OSError):
                client.sendall(heard)
                read(client, len(said))

        thread = threading.Thread(target=pretend, daemon=True)
        thread.start()
        there = SnapshotMemory("", 0, "127.0.0.1", stranger.getsockname()[1], "n0", "m0")
        with pytest.raises(ConnectionError, match="no agent of this job"):
            PeerConnection(there, KEY)
        thread.join(DEADLINE)


def test_a_request_before_the_proof(server: SnapshotServer) -> None:
    with connect(server) as connection:
        connection.sendall(hello(SNAPSHOTS) + new_nonce())
        read(connection, NONCE)
        connection.sendall(SnapshotRequest(FILE, 0, 10).encode().ljust(PROOF))
        assert ended(connection)


@pytest.mark.parametrize(
    "request_",
    [
        b'{"file": "../secrets", "offset": 0, "length": 1}\n',
        b'{"file": "lock", "offset": 0, "length": 1}\n',
        b'{"file": ["0123456789abcdef"], "offset": 0, "length": 1}\n',
        b'{"offset": 0, "length": 1}\n',
        b"[]\n",
        b"null\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"\n",
        b"[" * 1000 + b"\n",
        b"x" * 100_000,
    ],
)
def test_garbage_ends_the_conversation(server: SnapshotServer, request_: bytes) -> None:
    with admitted(server) as connection:
        with suppress(ConnectionError):
            connection.sendall(request_)
        assert ended(connection)
    assert size(server) == len(CONTENT)


@pytest.mark.parametrize(
    ("offset", "length"),
    [(-1, 1), (0, -1), (0, MAX_LENGTH + 1), (1 << 62, 1), (0, True), (0.5, 1), ("0", 1), (None, 1)],
)
def test_absurd_numbers(offset: object, length: object) -> None:
    with pytest.raises(ValueError, match=r"bytes|expected int"):
        SnapshotRequest.decode(SnapshotRequest(FILE, offset, length).encode())  # type: ignore[arg-type]


def test_more_than_there_is(server: SnapshotServer) -> None:
    with admitted(server) as connection:
        connection.sendall(SnapshotRequest(FILE, 1 << 61, MAX_LENGTH).encode())
        assert HEADER.unpack(read(connection, HEADER.size)) == (REFUSED, len(CONTENT))


def test_a_link_out_of_the_directory_leads_nowhere(server: SnapshotServer, tmp_path: Path) -> None:
    link = tmp_path / "mine" / FILE.replace("rank-0", "rank-1")
    link.symlink_to(tmp_path / "secrets")
    assert size(server, FILE.replace("rank-0", "rank-1")) == -1


def test_one_who_says_nothing_keeps_nobody(server: SnapshotServer) -> None:
    with connect(server) as silent, connect(server) as slow:
        slow.sendall(b"x")
        assert size(server) == len(CONTENT)
        assert ended(silent)
        assert ended(slow)


def test_one_who_hangs_up_in_the_middle(server: SnapshotServer) -> None:
    connection = admitted(server)
    connection.sendall(SnapshotRequest(FILE, 0, len(CONTENT)).encode())
    connection.close()
    assert size(server) == len(CONTENT)


def test_no_more_than_so_many(server: SnapshotServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_server, "MAX_SNAPSHOT_CLIENTS", 2)
    with admitted(server), admitted(server), connect(server) as third:
        assert ended(third)


def test_closing_ends_all_conversations(server: SnapshotServer) -> None:
    with admitted(server) as connection:
        server.close()
        assert ended(connection)
    with pytest.raises(OSError, match="refused"):
        connect(server)


def test_a_request_is_as_short_as_the_server_expects() -> None:
    assert len(SnapshotRequest("x" * 900, 1 << 61, MAX_LENGTH).encode()) <= MAX_REQUEST


# The directory


def test_workers_are_told_where_it_is() -> None:
    placed = job(snapshot_memory=MemoryLimit(bytes=1000), node_topology=("z", "r"))
    store = SnapshotHost(placed, "127.0.0.1")
    told = store.memory
    assert told is not None
    assert SnapshotMemory.decode(told.encode()) == told
    assert (told.limit, told.host, told.node) == (1000, "127.0.0.1", "a")
    assert told.topology == ("z", "r")
    assert Path(told.directory).stat().st_mode & 0o777 == 0o700
    secret = new_secret()
    store.admit(secret)
    assert read_key(told.directory) == key_for(SNAPSHOTS, secret)
    assert Path(told.directory, "key").stat().st_mode & 0o777 == 0o600
    PeerConnection(told, read_key(told.directory)).close()
    store.admit("")  # a store was emptied, and nobody could give the job back
    with pytest.raises(OSError, match=r"closed the connection|reset"):
        PeerConnection(told, read_key(told.directory))
    store.close()
    assert not Path(told.directory).exists()


def test_no_memory_no_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(snapshot_server, "_TMPFS", str(tmp_path))  # a disk
    store = SnapshotHost(job(snapshot_memory=MemoryLimit(bytes=1000)), "127.0.0.1")
    assert store.memory is None
    store.close()


_HOLDER = """
import sys
from elastic_runtime.agent.snapshot_server import SnapshotHost
from elastic_runtime.config import MemoryLimit
from tests.unit.agent.jobs import job
store = SnapshotHost(job(snapshot_memory=MemoryLimit(bytes=1000)), "127.0.0.1")
print(store.memory.directory, store._reaper.pid, flush=True)
sys.stdin.read()
store.close()
"""


def holder() -> tuple[subprocess.Popen[str], Path, int]:
    """An agent's memory in another process, where it is, and the process that outlives it."""
    made = waiting(_HOLDER)
    assert made.stdout is not None
    directory, reaper = made.stdout.readline().split()
    assert Path(directory).is_dir()
    return made, Path(directory), int(reaper)


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal by now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_the_memory_of_a_killed_agent_is_given_back_though_no_other_one_starts() -> None:
    agent, directory, reaper = holder()
    with agent:
        processes.wait_for(lambda: ignores(reaper, signal.SIGTERM), 60, "the reaper")
        os.kill(reaper, signal.SIGTERM)  # it follows its agent only
        (directory / "snapshot").write_bytes(bytes(100))
        agent.kill()
        agent.wait()
        processes.wait_for(lambda: not directory.exists(), 60, "the end of the memory")
        processes.wait_for(lambda: not processes.state(reaper), 60, "the end of the reaper")


def test_an_agent_without_memory_removes_that_of_dead_ones_as_well() -> None:
    agent, directory, reaper = holder()
    with agent:
        os.kill(reaper, signal.SIGKILL)  # a whole machine's worth of processes was killed
        agent.kill()
        agent.wait()
        assert directory.is_dir()
        store = SnapshotHost(job(snapshot_memory=MemoryLimit()), "127.0.0.1")
        assert store.memory is None
        store.close()
        assert not directory.exists()


def test_nothing_outlives_an_agent_that_ends_well() -> None:
    agent, directory, reaper = holder()
    agent.communicate()
    assert agent.returncode == 0
    assert not directory.exists()
    processes.wait_for(lambda: not processes.state(reaper), 60, "the end of the reaper")
