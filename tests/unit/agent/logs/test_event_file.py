"""``--log-file``: every event in a file, on disks that are full and with files that are moved."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent.logs.event_file import also_to_file
from elastic_runtime.errors import UsageError
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path


def nobody(name: str, /, **fields: Any) -> None:
    """A screen that shows nothing."""


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_screen_and_the_file_get_every_event(tmp_path: Path) -> None:
    shown: list[str] = []
    with also_to_file(lambda name, **_: shown.append(name), str(tmp_path / "e"), "a") as emit:
        emit("round.sealed", round=1, password="geheim")
        emit("job.done", seconds=1.0)
    assert shown == ["round.sealed", "job.done"]
    events = read(tmp_path / "e")
    assert [(e["event"], e["node"], e["level"]) for e in events] == [
        ("round.sealed", "a", "info"),
        ("job.done", "a", "info"),
    ]
    assert events[0]["password"] == "…"


def test_what_is_there_stays_and_directories_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.json"
    for number in range(2):
        with also_to_file(nobody, str(path)) as emit:
            emit("one", number=number)
    assert [event["number"] for event in read(path)] == [0, 1]


def test_a_file_that_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "events"):
        with pytest.raises(UsageError, match=f"--log-file={path} cannot be written to"):
            also_to_file(nobody, str(path)).__enter__()


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with also_to_file(nobody, str(path)) as emit:
        emit("one")
    with also_to_file(nobody, str(path)) as emit:
        emit("two")
        wait_for(lambda: len(read(path)) == 2, 30.0, "the second event")
        path.rename(tmp_path / "events.1")
        emit("three")
    assert [event["event"] for event in read(tmp_path / "events.1")] == ["one", "two"]
    assert [event["event"] for event in read(path)] == ["three"]


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    def write(node: str) -> None:
        with also_to_file(nobody, str(tmp_path / "events"), node) as emit:
            for number in range(100):
                emit("one", number=number, text=node * 3000)

    writers = [threading.Thread(target=write, args=(node,)) for node in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = read(tmp_path / "events")
    for node in "abc":
        assert [e["number"] for e in found if e["node"] == node] == list(range(100))


# A file may have so many bytes: the rest of a write is refused, as on a disk that is full.
_FULL = """
import resource, sys
from elastic_runtime.agent.logs import worker_files
from elastic_runtime.agent.logs.event_file import also_to_file

worker_files._AGAIN = 0.0
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
told, events = [], None

def screen(name, **fields):
    if name.startswith("events."):
        print(name, fields["path"] == sys.argv[1], flush=True)
        if name == "events.dropped":
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

with also_to_file(screen, sys.argv[1]) as emit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    for number in range(6):
        emit("one", number=number, text="x" * 300)
"""


def test_a_full_disk_leaves_no_half_line_and_is_said(tmp_path: Path) -> None:
    path = tmp_path / "events"
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["events.dropped True", "events.resumed True"]
    events = read(path)
    assert [e["number"] for e in events if e["event"] == "one"] == [0, 1, 3, 4, 5]
    assert "bytes of events could not be written here" in events[2]["line"]
