"""How two processes of one job prove to each other that they know its secret.

The secret is in the job's record: a process that may read the job in the store knows it. It is
never sent to another one. For each purpose a key is derived from it, and on each connection both
sides show that they have the key, over what both have drawn for this connection alone::

    client ──▶ server   a line that says what it is for; its nonce (32 random bytes)
    server ──▶ client   its nonce
    client ──▶ server   its proof (32 bytes), and what it asks
    server ──▶ client   its proof, and what it answers

A proof is HMAC-SHA256 (RFC 2104) over the side that speaks, both nonces and what is said with it.
So a recorded proof is worth nothing on another connection, nor to the other side, and nothing of it
can be changed on its way. It is not encrypted. A client without a valid proof gets no answer; one
that does not even begin like this, such as a version without proofs, gets not one byte.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

# In bytes.
NONCE = 32
PROOF = 32

# What keys are for.
PROBES = "probes"
SNAPSHOTS = "snapshots"

_CLIENT = b"elastic-runtime client\0"
_SERVER = b"elastic-runtime server\0"


def new_secret() -> str:
    """A secret for a new job."""
    return secrets.token_hex(32)


def key_for(purpose: str, secret: str) -> str:
    """The key that a secret gives for a purpose, in hexadecimal; it does not give other keys.

    Args:
        purpose: one of those above.
        secret: the job's; "" if it is not known, and then the key is "" and proves nothing.
    """
    if not secret:
        return ""
    return hmac.digest(secret.encode(), purpose.encode(), hashlib.sha256).hex()


def hello(purpose: str) -> bytes:
    """With what a client begins, before its nonce."""
    return f"elastic-runtime {purpose} 1\n".encode()


def new_nonce() -> bytes:
    """Random bytes that were never used before."""
    return secrets.token_bytes(NONCE)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One connection, as both of its sides know it.

    Attributes:
        key: of its purpose; "": this side knows none, so it proves nothing and believes nothing.
        server, client: their nonces.
    """

    key: str
    server: bytes
    client: bytes

    def asking(self, said: bytes = b"") -> bytes:
        """The client's proof over what it asks."""
        return self._proof(_CLIENT, said)

    def answering(self, said: bytes = b"") -> bytes:
        """The server's proof over what it answers."""
        return self._proof(_SERVER, said)

    def is_asked(self, proof: bytes, said: bytes = b"") -> bool:
        """Whether a client that knows the key has asked this, on this connection."""
        return self._holds(proof, self.asking(said))

    def is_answered(self, proof: bytes, said: bytes = b"") -> bool:
        """Whether a server that knows the key has answered this, on this connection."""
        return self._holds(proof, self.answering(said))

    def _proof(self, side: bytes, said: bytes) -> bytes:
        message = side + self.server + self.client + said
        return hmac.digest(self.key.encode(), message, hashlib.sha256)

    def _holds(self, proof: bytes, expected: bytes) -> bool:
        # A proof with an empty key can be made without knowing any secret.
        return bool(self.key) and hmac.compare_digest(proof, expected)
