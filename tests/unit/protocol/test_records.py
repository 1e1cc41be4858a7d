"""What records, messages and requests may hold, and who may read and answer them."""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import RecordError
from elastic_runtime.protocol.messages import decode
from elastic_runtime.protocol.peer_proof import (
    NONCE,
    PROBES,
    PROOF,
    SNAPSHOTS,
    Exchange,
    key_for,
    new_nonce,
    new_secret,
)
from elastic_runtime.protocol.records import JOB, EventRecord, JobRecord
from elastic_runtime.protocol.round_records import Budget, Member, RoundRecord
from elastic_runtime.protocol.snapshot_requests import (
    SnapshotMemory,
    SnapshotRequest,
    read_key,
    write_key,
)
from elastic_runtime.protocol.unix_path import address_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_that_an_older_version_began_can_be_read() -> None:
    old = json.loads(JobRecord("life", 1, 2, 1, 2, protocol="2", release="0.2.0").encode())
    for added in ("protocol", "release", "secret", "invocation"):
        del old[added]
    record = JobRecord.decode(JOB, json.dumps(old).encode())
    assert (record.protocol, record.release, record.entry) == ("", "", "")


LARGE = json.dumps({**json.loads(EventRecord(1.5, "x", 1, "a", "y").encode()), "at": 10**400})


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"v":' * 100_000, LARGE.encode()])
def test_what_is_nested_too_deeply_or_a_number_that_is_too_large_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        EventRecord.decode("events/0-1", data)


# ---------------------------------------------------------------- rounds

WORKERS = {"a": 2, "b": 3, "c": 1}
MEMBERS = tuple(Member(name, name, "127.0.0.1", count) for name, count in WORKERS.items())
WHOLE = RoundRecord(3, "life", MEMBERS, 1, "why")
# The same, as a node knows it that has read of the first and the last member only.
_KNOWN = MEMBERS[0], MEMBERS[2]
SOME = replace(
    WHOLE, members=_KNOWN, group="g", parts=2, nodes=3, workers=6, ranks=(0, 2), firsts=(0, 5)
)


@pytest.mark.parametrize("known", [WHOLE, SOME])
def test_a_member_has_the_same_ranks_whoever_asks(known: RoundRecord) -> None:
    known.check()
    assert (known.size, known.world_size) == (3, 6)
    assert (known.rank_of("a"), known.rank_of("c"), known.rank_of("stranger")) == (0, 2, -1)
    assert known.member(2) == MEMBERS[2]
    assert [known.first_worker(rank) for rank in (0, 2)] == [0, 5]


def test_who_is_not_known_here_is_an_error() -> None:
    assert WHOLE.whole and not SOME.whole
    assert SOME.rank_of("b") == -1
    with pytest.raises(LookupError, match="round 3: group rank 1 is not known here"):
        SOME.member(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 0},
        {"members": ()},
        {"members": (MEMBERS[0], MEMBERS[0])},
        {"members": (replace(MEMBERS[0], workers=0),)},
        {"group": "g"},
        {"ranks": (0, 1)},
        {"ranks": (0, 1, 3), "firsts": (0, 2, 5), "nodes": 3},
    ],
)
def test_a_round_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        replace(WHOLE, **changes).check()  # type: ignore[arg-type]


def test_only_a_round_in_parts_is_of_the_second_version() -> None:
    assert (WHOLE.version, SOME.version) == (1, 2)


def test_restarts_are_counted_by_what_caused_them() -> None:
    budget = Budget(failures=1, killed=2, lost=3, planned=4, fruitless=9)
    assert budget.restarts == {"failed": 1, "killed": 2, "lost": 3, "planned": 4}


# ---------------------------------------------------------------- messages of workers


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[" * 100_000,
        b'{"kind":' * 100_000,
        b"3",
        b"{}",
        b'{"kind": []}',
        b'{"kind": "no such thing"}',
        b'{"kind": "ready", "more": 1}',
        b'{"kind": "returned"}',
        b'{"kind": "returned", "round": "1"}',
        b'{"kind": "returned", "round": true}',
        b'{"kind": "returned", "round": 1.5}',
        b'{"kind": "note", "name": "x", "rank": 0, "round": 1, "fields": 5}',
        b'{"kind": "note", "name": "x", "rank": 0, "round": 1, "fields": {"event": "y"}}',
        b'{"kind": "nearby", "places": [5]}',
        b'{"kind": "hello", "rank": 0, "round": 1, "pid": 2, "drains": true, "life": {}}',
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(RecordError):
        decode(line)


# ---------------------------------------------------------------- requests for pieces of snapshots

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


# ---------------------------------------------------------------- proofs

SECRET = new_secret()
HERE = Exchange(key_for(PROBES, SECRET), new_nonce(), new_nonce())


def test_who_knows_the_secret_can_prove_it() -> None:
    assert HERE.is_asked(HERE.asking(b"step?"), b"step?")
    assert HERE.is_answered(HERE.answering(b"7"), b"7")
    assert (len(HERE.asking()), len(HERE.server)) == (PROOF, NONCE)


def test_what_was_said_cannot_be_changed_nor_said_back() -> None:
    assert not HERE.is_asked(HERE.asking(b"step?"), b"stop!")
    assert not HERE.is_answered(HERE.asking(b"7"), b"7"), "the side that speaks is in it"
    assert not HERE.is_asked(HERE.answering(b"7"), b"7")


def test_a_recorded_proof_is_worth_nothing_elsewhere() -> None:
    for other in (replace(HERE, server=new_nonce()), replace(HERE, client=new_nonce())):
        assert not other.is_asked(HERE.asking())
        assert not other.is_answered(HERE.answering())


def test_the_key_of_one_purpose_is_none_for_another() -> None:
    assert not replace(HERE, key=key_for(SNAPSHOTS, SECRET)).is_asked(HERE.asking())
    assert not replace(HERE, key=key_for(PROBES, new_secret())).is_asked(HERE.asking())


def test_who_knows_no_secret_believes_nobody() -> None:
    nobody = replace(HERE, key=key_for(PROBES, ""))
    assert nobody.key == ""
    assert not nobody.is_asked(nobody.asking())
    assert not nobody.is_answered(nobody.answering())


# ---------------------------------------------------------------- paths of sockets


def test_a_path_that_is_too_long_for_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with address_of(path) as address:
            server.bind(address)
        server.listen()
        assert os.path.exists(path)
        with address_of(path) as address:
            client.connect(address)
        # The directory's descriptor is not kept.
        with pytest.raises(OSError):
            os.stat(address)


def test_a_short_path_is_left_as_it_is_and_a_directory_has_to_be_there(tmp_path: Path) -> None:
    with address_of("/run/job/s") as address:
        assert address == "/run/job/s"
    with pytest.raises(FileNotFoundError), address_of(str(tmp_path / ("x" * 120) / "s")):
        pass
