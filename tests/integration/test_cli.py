"""``elastic-run`` with real jobs of one node."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import elastic_run

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT = """
import os, sys
print("args", *sys.argv[1:], "threads", os.environ.get("OMP_NUM_THREADS"))
print("inherited", [n for n in ("ELASTIC_ETCD_PASSWORD", "TORCH_CPP_LOG_LEVEL") if n in os.environ])
"""


def test_static_rendezvous_is_torchruns(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    words = ("--rdzv-backend", "static", "train.py", "--x")
    done = elastic_run(*words, folder=tmp_path, OMP_NUM_THREADS="5")
    assert done.returncode == 0, done.stderr
    assert "args --x threads 5" in done.stdout
    assert "static rendezvous: torch's own launcher runs this job" in done.stderr


@pytest.mark.users_start
@pytest.mark.golden("elastic-run: a plain script from start to end")
def test_a_whole_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    words = ("--max", "2", "train.py", "--max", "7")
    environ = {"ELASTIC_LAST_CALL": "0", "ELASTIC_ETCD_PASSWORD": "geheim"}
    done = elastic_run(*words, folder=tmp_path, **environ)
    assert done.returncode == 0, done.stderr
    assert "args --max 7" in done.stdout
    assert "inherited []" in done.stdout
    assert "geheim" not in done.stderr + done.stdout
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert events[0]["event"] == "job.join_command"
    assert "--rdzv-endpoint c10d://127.0.0.1:" in events[0]["command"]


def test_a_program_can_read_each_line_of_the_stream_with_the_events(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nos.write(2, b'half')\nprint('out')\n1 / 0\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "elastic_runtime", "--cold", "--log-format", "json"),
            *("--max-restarts", "0", "--log-file", "logs/events.json", "train.py"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [e for e in events if e["event"] == "worker.line"]
    assert ("stdout", "out") in [(e["stream"], e["line"]) for e in lines]
    assert any(e["line"].endswith("ZeroDivisionError: division by zero") for e in lines)
    assert all((e["rank"], e["local_rank"]) == (0, 0) for e in lines)
    said = [e["line"] for e in events if e["event"] == "agent.line"]
    assert "train.py FAILED" in said, "torch's table of failures"
    file = (tmp_path / "logs" / "events.json").read_text().splitlines()
    names = [json.loads(line)["event"] for line in file]
    assert names == [e["event"] for e in events if not e["event"].endswith(".line")]
    assert names[-1] == "job.failed"


def test_a_timer_file_that_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    wanted = str(tmp_path / "nowhere" / "timers")
    timer = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": wanted}
    done = elastic_run("--cold", "train.py", folder=tmp_path, **timer)
    assert done.returncode == 2, done.stderr
    said = f"elastic-run: error: TORCHELASTIC_TIMER_FILE={wanted!r}: no pipe can be made there"
    assert said in done.stderr
    assert "Traceback" not in done.stderr
