"""Requests for pieces of snapshots: what they may name, and who may read the key."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import RecordError
from elastic_runtime.protocol.snapshot_requests import (
    SnapshotMemory,
    SnapshotRequest,
    read_key,
    write_key,
)

if TYPE_CHECKING:
    from pathlib import Path

PLACE = "0123456789abcdef/step-3.term-1"


@pytest.mark.parametrize("name", ["rank-0.distcp", ".metadata", "MANIFEST.json"])
def test_the_files_of_a_snapshot_can_be_asked_for(name: str) -> None:
    request = SnapshotRequest(f"{PLACE}/{name}", 8, 100)
    assert SnapshotRequest.decode(request.encode()) == request


@pytest.mark.parametrize(
    "name",
    ["key", f"{PLACE}/../../key", "/etc/passwd", f"{PLACE}/rank-0.distcp\n", f"{PLACE}/key", ""],
)
def test_nothing_else_can_be_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match="not a file of a snapshot"):
        SnapshotRequest.decode(SnapshotRequest(name).encode())


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (1 << 62, 1), (0, -1), (0, 1 << 61)])
def test_no_absurd_number_of_bytes_can_be_asked_for(offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="absurd"):
        SnapshotRequest.decode(SnapshotRequest(f"{PLACE}/.metadata", offset, length).encode())


def test_a_description_that_is_none_is_refused_by_the_name_of_its_variable() -> None:
    with pytest.raises(RecordError, match="ELASTIC_SNAPSHOTS"):
        SnapshotMemory.decode('{"directory": 3}')


def test_only_the_user_can_read_the_key(tmp_path: Path) -> None:
    for key in ("first", "second"):
        write_key(str(tmp_path), key)
        assert read_key(str(tmp_path)) == key
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
