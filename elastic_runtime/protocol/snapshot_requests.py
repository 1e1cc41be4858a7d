"""How snapshots in the memory of an agent are found and asked for.

An agent offers a directory in memory (tmpfs) to its workers, and serves the files in it to the
workers of other nodes::

    client ──▶ server   what it wants, and its nonce
    server ──▶ client   its nonce
    client ──▶ server   its proof that it has the key
    server ──▶ client   its proof; or it closes the connection
    client ──▶ server   {"file": …, "offset": …, "length": …}, one line of JSON
    server ──▶ client   how many bytes follow (−1: refused) and the size of the file; the bytes

The last two repeat; ``protocol.peer_proof`` defines the others. The key is the same for all agents
of the job. Workers find theirs in a file that only their user can read, and never pass it on: it is
neither in their environment, which all processes inherit that they start, nor among what ranks
send each other.
"""

from __future__ import annotations

import json
import os
import re
import struct
from dataclasses import asdict, dataclass
from typing import Self

from elastic_runtime import codec
from elastic_runtime.errors import RecordError

# Set by the agent for each worker: a SnapshotMemory; empty if there is none.
ENV_SNAPSHOTS = "ELASTIC_SNAPSHOTS"

HEADER = struct.Struct("!qQ")
REFUSED = -1
MAX_REQUEST = 1024
MAX_LENGTH = 1 << 60
# The file with the key, in the directory; no request can name it.
_KEY = "key"
_LONGEST_KEY = 256

# The directory of one place of checkpoints, a snapshot, one of its files.
FILE = re.compile(
    r"[0-9a-f]{16}/step-\d{1,20}\.term-\d{1,20}/(rank-\d{1,10}\.distcp|\.metadata|MANIFEST\.json)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class SnapshotMemory:
    """An agent's memory for snapshots, as it describes it to its workers, and they to other ranks.

    Attributes:
        directory: in tmpfs.
        limit: how many bytes all snapshots of the node may take.
        host, port: where the agent serves what is in the directory.
        node: its name, for people.
        machine: the same for all nodes of one machine, which fail together.
        topology: where the node is in its network, in levels from far to near; None: its version
            of this package does not say it.
    """

    directory: str
    limit: int
    host: str
    port: int
    node: str
    machine: str
    topology: tuple[str, ...] | None = None

    def encode(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Reads what ``encode`` gave.

        Raises:
            RecordError: it is something else.
        """
        try:
            return codec.build(cls, codec.parse(text))
        except ValueError:
            raise RecordError(ENV_SNAPSHOTS, "not a description of memory for snapshots") from None


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request for a piece of a file.

    Attributes:
        file: relative to the directory.
        offset, length: in bytes; 0 bytes if only the size of the file is asked for.
    """

    file: str
    offset: int = 0
    length: int = 0

    def encode(self) -> bytes:
        """One line, with its newline."""
        return codec.encode(self) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Reads a line of any client.

        Raises:
            ValueError: it asks for nothing that a snapshot has.
        """
        request = codec.build(cls, codec.parse(line))
        if not FILE.fullmatch(request.file):
            raise ValueError("not a file of a snapshot")
        if not (0 <= request.offset < 1 << 62 and 0 <= request.length <= MAX_LENGTH):
            raise ValueError("an absurd number of bytes")
        return request


def write_key(directory: str, key: str) -> None:
    """Gives the workers of an agent the key of the job, in place of any that they had.

    Args:
        directory: of the agent, in memory.
        key: as ``proof.key_for`` gives it.

    Raises:
        OSError: it cannot be written.
    """
    path = os.path.join(directory, _KEY)
    draft = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(draft, "w") as file:
        file.write(key)
    os.rename(f"{path}.new", path)  # a reader at this moment reads one or the other


def read_key(directory: str) -> str:
    """The key that the agent of this directory has given its workers.

    Raises:
        OSError: it cannot be read.
    """
    with open(os.path.join(directory, _KEY)) as file:
        return file.read(_LONGEST_KEY)
