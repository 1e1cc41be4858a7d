"""Records that no program of ours has written."""

from __future__ import annotations

import json

import pytest

from elastic_runtime.errors import RecordError
from elastic_runtime.protocol.records import JOB, EventRecord, JobRecord


def test_a_job_that_an_older_version_began_can_be_read() -> None:
    old = json.loads(JobRecord("life", 1, 2, 1, 2, protocol="2", release="0.2.0").encode())
    for added in ("protocol", "release", "secret", "invocation"):
        del old[added]
    record = JobRecord.decode(JOB, json.dumps(old).encode())
    assert (record.protocol, record.release, record.entry) == ("", "", "")


def test_a_number_too_large_for_its_field_is_refused() -> None:
    body = json.loads(EventRecord(1.5, "x", 1, "a", "text").encode())
    with pytest.raises(RecordError):
        EventRecord.decode("events/0-1", json.dumps({**body, "at": 10**400}).encode())


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"v":' * 100_000])
def test_what_is_nested_too_deeply_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        EventRecord.decode("events/0-1", data)
