"""Workers that leave broken error files: each costs one restart, as any failure, and no agent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.processes import elastic_run

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import os, sys

life = len(os.listdir(sys.argv[1]))
open(os.path.join(sys.argv[1], str(life)), "w").close()
path = os.environ["TORCHELASTIC_ERROR_FILE"]
if life == 4:
    os.mkdir(path)
elif life == 5:
    os.mkfifo(path)
else:
    with open(path, "wb") as file:
        file.write((b"", b'{"message": {"mess', b"[1]", b"\\xff\\xfe")[life])
os._exit(30 + life)
"""


def test_no_error_file_ends_an_agent(tmp_path: Path) -> None:
    (tmp_path / "lives").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ("--cold", "--log-format", "json", "--max-restarts", "5")
    ended = elastic_run(*options, "script.py", "lives", folder=tmp_path)
    events = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    codes = [event["exit_code"] for event in events if event["event"] == "worker.failed"]
    assert codes == [30, 31, 32, 33, 34, 35], ended.stderr
    assert ended.returncode == 1, ended.stderr
    assert "Traceback (most recent call last)" not in ended.stderr
