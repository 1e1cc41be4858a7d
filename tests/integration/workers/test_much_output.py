"""Output that no console wants, from real workers."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.lifecycle.lifecycle_types import WorkerExited
from elastic_runtime.agent.logs.log_directory import LogDirs
from elastic_runtime.agent.workers.roster import WorkerSpec
from elastic_runtime.agent.workers.worker_processes import WorkerEvent, WorkerProcesses
from elastic_runtime.config import COMMAND, Endpoint, Entry, JobConfig
from tests.integration.workers.worker_harness import PATIENCE, ScriptHarness
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path


def test_megabytes_without_a_newline(harness: ScriptHarness) -> None:
    harness.write("for _ in range(300): print('x' * 10_000, end='')\nprint('', 'end')\n")
    assert [ended.code for ended in harness.run()] == [0, 0]
    wait_for(
        lambda: harness.stdout.read_bytes().count(b"end\n") == 2,
        20,
        "the end of both",
        harness.story,
    )
    assert harness.stdout.read_bytes().count(b"x") == 2 * 3_000_000


def test_all_output_precedes_the_report(cold: ScriptHarness) -> None:
    cold.write("import os\nfor n in range(2000): print(n)\nos._exit(3)\n")
    for _ in range(5):
        (ended,) = cold.run(0)
        assert ended.code == 3
        cold.workers._output.consoles["stdout"].flush(10.0)
        expected = "".join(f"[default0]:{n}\n" for n in range(2000))
        assert cold.stdout.read_text() == expected


# A process of its own: in that of the tests, threads of others open and close files as well.
_DESCRIPTORS = """
import json, os, sys
from pathlib import Path
from tests import processes
from tests.integration.workers.worker_harness import ScriptHarness

harness = ScriptHarness(Path(sys.argv[1]), workers=2, cold=sys.argv[2] == "cold")
harness.ready()
harness.write("print('x')")
harness.run()
counted = [[processes.descriptors(pid) for pid in (os.getpid(), harness.server())]]
for _ in range(3):
    harness.run()
counted += [[processes.descriptors(pid) for pid in (os.getpid(), harness.server())]]
harness.close()
print(json.dumps(counted))
"""


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_no_descriptor_is_left_open(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIPTORS, tmp_path, kind],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)  # of the agent, and of its fork server
    assert [*map(len, after)] == [*map(len, before)], (before, after)


def test_a_console_that_is_gone_does_not_end_the_job(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ends = _ends_of_a_talkative_command(tmp_path, writing)
    os.close(writing)
    assert [ended.code for ended in ends] == [0]


def test_a_console_that_is_not_read_does_not_stop_an_end(tmp_path: Path) -> None:
    # Little enough for its limit: nobody has to wait, and nothing is lost when it is read at last.
    reading, writing = os.pipe()
    ends = _ends_of_a_talkative_command(tmp_path, writing)
    os.close(writing)
    assert [ended.code for ended in ends] == [0]
    os.close(reading)


def _ends_of_a_talkative_command(directory: Path, console: int) -> list[WorkerExited]:
    talk = "import sys; sys.stdout.write('x' * 999_999 + '\\n')"
    entry = Entry(COMMAND, sys.executable, ("-c", talk))
    config = JobConfig(entry, Endpoint("c10d", ("127.0.0.1:1",)), "run")
    events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
    workers = WorkerProcesses(config, events.put, stdout=console)
    workers.start_server()
    worker_dir = LogDirs(config, str(directory)).worker_dir(1, 0)
    workers.start([WorkerSpec(0, 0, 1, dict(os.environ), worker_dir)])
    while True:
        event = events.get(timeout=PATIENCE)
        if isinstance(event, WorkerExited):
            break
    for screen in workers._output.consoles.values():
        screen._patience = 0.1
    workers.close()
    return [event]
