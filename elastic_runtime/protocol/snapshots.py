"""How snapshots in the memory of an agent are found and asked for.

An agent offers a directory in memory (tmpfs) to its workers, and serves the files in it to the
workers of other nodes::

    server ──▶ client   a challenge (32 random bytes)
    client ──▶ server   its proof (32 bytes), which only one who knows the secret can make
    server ──▶ client   b"+"; or it hangs up
    client ──▶ server   {"file": …, "offset": …, "length": …}, one line of JSON
    server ──▶ client   how many bytes follow (−1: refused) and the size of the file; the bytes

The last two repeat. The secret itself is never sent to the server.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from elastic_runtime.errors import RecordError

# Set by the agent for each worker: a SnapshotMemory; empty if there is none.
ENV_SNAPSHOTS = "ELASTIC_SNAPSHOTS"

CHALLENGE = 32
WELCOME = b"+"
HEADER = struct.Struct("!qQ")
REFUSED = -1
MAX_REQUEST = 1024
MAX_LENGTH = 1 << 60

# The directory of one place of checkpoints, a snapshot, one of its files.
FILE = re.compile(
    r"[0-9a-f]{16}/step-\d{1,20}\.term-\d{1,20}/(rank-\d{1,10}\.distcp|\.metadata|MANIFEST\.json)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class SnapshotMemory:
    """What an agent tells its workers, and these the other ranks, of its memory for snapshots.

    Attributes:
        directory: in tmpfs.
        limit: how many bytes all snapshots of the node may take.
        host, port: where the agent serves what is in the directory.
        secret: in hexadecimal; whoever knows it may read there.
        node: its name, for people.
        machine: the same for all nodes of one machine, which fail together.
    """

    directory: str
    limit: int
    host: str
    port: int
    secret: str = field(repr=False)
    node: str
    machine: str

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
            body = json.loads(text)
            return cls(
                directory=str(body["directory"]),
                limit=int(body["limit"]),
                host=str(body["host"]),
                port=int(body["port"]),
                secret=str(body["secret"]),
                node=str(body["node"]),
                machine=str(body["machine"]),
            )
        except (ValueError, KeyError, TypeError):
            # What it says is not repeated: there may be a secret in it.
            raise RecordError(ENV_SNAPSHOTS, "not a description of memory for snapshots") from None


@dataclass(frozen=True, slots=True)
class Request:
    """A wish for a piece of a file.

    Attributes:
        file: relative to the directory.
        offset, length: in bytes; 0 bytes if only the size of the file is asked for.
    """

    file: str
    offset: int = 0
    length: int = 0

    def encode(self) -> bytes:
        """One line, with its newline."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Reads a line, whoever sent it.

        Raises:
            ValueError: it asks for nothing that a snapshot has.
        """
        try:
            body: Any = json.loads(line)
            file, offset, length = body["file"], body["offset"], body["length"]
        except (KeyError, TypeError, RecursionError):
            raise ValueError("not a request") from None
        if not isinstance(file, str) or not FILE.fullmatch(file):
            raise ValueError("not a file of a snapshot")
        if type(offset) is not int or type(length) is not int:
            raise ValueError("not a number of bytes")
        if not (0 <= offset < 1 << 62 and 0 <= length <= MAX_LENGTH):
            raise ValueError("an absurd number of bytes")
        return cls(file, offset, length)


def proof(secret: str, challenge: bytes) -> bytes:
    """What shows that one knows the secret, to whom has sent the challenge."""
    return hmac.digest(secret.encode(), b"elastic-snapshots" + challenge, hashlib.sha256)
