"""Output that no console wants, from real workers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.workers.worker_harness import PATIENCE, ScriptHarness

if TYPE_CHECKING:
    from pathlib import Path


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
