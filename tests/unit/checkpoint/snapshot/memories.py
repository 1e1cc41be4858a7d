"""The memory of an agent in a directory of the test's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.protocol.snapshot_requests import SnapshotMemory

if TYPE_CHECKING:
    from pathlib import Path


def memory_of(path: Path, port: int = 1) -> SnapshotMemory:
    """That of node n0, whose server has this port on the loopback; nobody listens on port 1."""
    return SnapshotMemory(str(path), 1 << 30, "127.0.0.1", port, "n0", "m0")
