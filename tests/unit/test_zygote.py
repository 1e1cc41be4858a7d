"""A fork of the zygote finds what a process that was started finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import processes, zygote

if TYPE_CHECKING:
    from pathlib import Path

_LOOKS = """
import json, os, signal, sys

STREAM = ("encoding", "errors", "line_buffering", "write_through")

def proc(name):
    text = open(f"/proc/self/{name}", "rb").read().decode()
    return [word for word in text.split(chr(0)) if word]

print(json.dumps({
    "argv": sys.argv,
    "path": sys.path[0],
    "main": __name__,
    "file": __file__,
    "cwd": os.getcwd(),
    "environ": dict(os.environ),
    "shown environ": sorted(proc("environ")),
    "shown command": proc("cmdline"),
    "stdin": sys.stdin.read(),
    "open": sorted(name for name in os.listdir("/proc/self/fd") if int(name) > 2),
    "leads": (os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "handlers": [str(signal.getsignal(n)) for n in (2, 13, 15, 17)],
    "out": [getattr(sys.stdout, name) for name in STREAM],
    "err": [getattr(sys.stderr, name) for name in STREAM],
}))
raise SystemExit(7)
"""


@pytest.mark.parametrize("session", [False, True])
def test_it_finds_what_a_process_that_is_started_finds(session: bool, tmp_path: Path) -> None:
    script, given = tmp_path / "looks.py", tmp_path / "given"
    script.write_text(_LOOKS)
    given.write_text("standard input")
    found = []
    for start in (subprocess.Popen, zygote.start):
        with given.open() as stdin:
            process: subprocess.Popen[Any] = start(
                [sys.executable, str(script), "one", "-u"],
                env={**os.environ, "OMP_NUM_THREADS": "1", "SAID": "two words"},
                cwd=tmp_path,
                stdin=stdin,
                stdout=subprocess.PIPE,
                start_new_session=session,
            )
            out, _ = process.communicate(timeout=100)
        assert process.returncode == 7
        found.append(json.loads(out))
    assert found[0] == found[1]


def test_a_warm_worker_finds_what_one_of_a_users_job_finds(tmp_path: Path) -> None:
    script, given = tmp_path / "looks.py", tmp_path / "given"
    script.write_text(_LOOKS.replace("SystemExit(7)", "SystemExit"))
    given.write_text("")
    found = []
    for start in (subprocess.Popen, zygote.start):
        with (
            given.open() as stdin,
            start(
                [sys.executable, "-m", "elastic_runtime", "--run-id", "one", str(script)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                cwd=tmp_path,
                stdin=stdin,
                stdout=subprocess.PIPE,
            ) as process,
        ):
            out, _ = process.communicate(timeout=100)
        (line,) = [line for line in out.splitlines() if b"shown command" in line]
        looks = json.loads(line[line.index(b"{") :])
        for name in ("environ", "shown environ", "shown command"):  # have names and ports of a job
            del looks[name]
        found.append(looks)
    assert found[0] == found[1]


def test_it_has_all_as_soon_as_it_is_started(tmp_path: Path) -> None:
    script, mark = tmp_path / "waits.py", f"zygote-{tmp_path.name}"
    script.write_text("import signal; signal.pause()")
    environ = {**os.environ, processes.MARKER: mark}
    with zygote.start([sys.executable, str(script)], env=environ) as process:
        try:
            assert processes.marked(mark) == [process.pid]
        finally:
            processes.end(mark)
        assert process.wait(100) == -signal.SIGKILL


def test_how_it_ends_is_known(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import signal, sys; print('here', flush=True); signal.pause()")
    before = zygote.processor_seconds()
    process = zygote.start([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    with process:
        assert process.wait(100) == -signal.SIGTERM
    assert zygote.processor_seconds() > before


@pytest.mark.users_start
def test_what_is_about_a_start_is_no_fork(tmp_path: Path) -> None:
    script = tmp_path / "looks.py"
    script.write_text("import os; print(os.getppid())")
    done = zygote.run([sys.executable, str(script)], timeout=100, capture_output=True, text=True)
    assert int(done.stdout) == os.getpid()


def test_what_python_reads_at_its_start_is_no_fork(tmp_path: Path) -> None:
    script = tmp_path / "looks.py"
    script.write_text("import os; print(os.getppid())")
    for name, forked in (("PYTHONPATH", False), ("TORCH_LOGS", False), ("ANY", True)):
        done = zygote.run(
            [sys.executable, str(script)],
            env={**os.environ, name: "other"},
            timeout=100,
            capture_output=True,
            text=True,
        )
        assert (int(done.stdout) != os.getpid()) == forked, name
