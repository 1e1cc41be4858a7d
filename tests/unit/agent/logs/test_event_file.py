"""``--log-file``: every event in a file, on disks that are full and with files that are moved."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent.logs.event_file import also_to_file
from elastic_runtime.errors import UsageError
from elastic_runtime.events import Event, silent
from elastic_runtime.events.job_events import JobDone
from elastic_runtime.events.node_events import NodeLeaving
from elastic_runtime.events.round_events import StepFirst
from elastic_runtime.events.snapshot_events import SnapshotFailed
from elastic_runtime.events.store_events import StoreForgot, StoreFound
from tests.processes import wait_for
from tests.unit.programs import python

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_screen_and_the_file_get_every_event(tmp_path: Path) -> None:
    shown: list[Event] = []
    given = [NodeLeaving("x", extra={"password": "geheim"}), JobDone(1.0)]
    with also_to_file(shown.append, str(tmp_path / "e"), "a") as emit:
        for event in given:
            emit(event)
    assert shown == given
    events = read(tmp_path / "e")
    assert [(e["event"], e["node"], e["level"]) for e in events] == [
        ("node.leaving", "a", "info"),
        ("job.done", "a", "info"),
    ]
    assert events[0]["password"] == "…"


def test_what_is_there_stays_and_directories_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.json"
    for number in range(2):
        with also_to_file(silent, str(path)) as emit:
            emit(StepFirst(number))
    assert [event["step"] for event in read(path)] == [0, 1]


def test_a_file_that_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "events"):
        with pytest.raises(UsageError, match=f"--log-file={path} cannot be written to"):
            also_to_file(silent, str(path)).__enter__()


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with also_to_file(silent, str(path)) as emit:
        emit(StoreFound())
    with also_to_file(silent, str(path)) as emit:
        emit(StoreForgot())
        wait_for(lambda: len(read(path)) == 2, 30.0, "the second event")
        path.rename(tmp_path / "events.1")
        emit(StoreFound())
    names = [[event["event"] for event in read(one)] for one in (tmp_path / "events.1", path)]
    assert names == [["store.found", "store.forgot"], ["store.found"]]


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    def write(node: str) -> None:
        with also_to_file(silent, str(tmp_path / "events"), node) as emit:
            for number in range(100):
                emit(SnapshotFailed("x", number, problem=node * 3000))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, "abc"))
    found = read(tmp_path / "events")
    for node in "abc":
        assert [e["step"] for e in found if e["node"] == node] == list(range(100))


# A file may have so many bytes: the rest of a write is refused, as on a disk that is full.
_FULL = """
import resource, sys
from elastic_runtime.agent.logs import worker_files
from elastic_runtime.agent.logs.event_file import also_to_file
from elastic_runtime.events.log_events import EventsDropped, EventsResumed
from elastic_runtime.events.snapshot_events import SnapshotFailed

worker_files._AGAIN = 0.0
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
told, events = [], None

def screen(event):
    if isinstance(event, EventsDropped | EventsResumed):
        print(event.name, event.path == sys.argv[1], flush=True)
        if isinstance(event, EventsDropped):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

with also_to_file(screen, sys.argv[1]) as emit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    for number in range(6):
        emit(SnapshotFailed("x", number, problem="x" * 300))
"""


def test_a_full_disk_leaves_no_half_line_and_is_said(tmp_path: Path) -> None:
    path = tmp_path / "events"
    done = python("-c", _FULL, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["events.dropped True", "events.resumed True"]
    events = read(path)
    assert [e["step"] for e in events if e["event"] == "snapshot.failed"] == [0, 1, 3, 4, 5]
    assert "bytes of events could not be written here" in events[2]["line"]
