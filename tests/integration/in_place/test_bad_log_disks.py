"""A log disk that is full, read-only or hangs, or is not there any more: no job hears of it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import processes, zygote
from tests.integration.in_place.job import ELASTIC_RUN, ENVIRONMENT, PATIENCE, Job
from tests.mounts import small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator


_HANGING = Path(__file__).with_name("hanging")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "512k") as place:
        yield place


def test_no_worker_hears_of_a_full_log_disk(disk: Path, tmp_path: Path) -> None:
    (disk / "others").write_bytes(b"x" * (400 << 10))
    options = ("--nproc-per-node", "2", "--redirects", "3", "--log-dir", str(disk))
    with Job(tmp_path, "steps.py", *options, kind="loud") as job:
        before = job.ranks(2)
        job.event("log.dropped", why="No space left on device")
        further = job.step + 20
        job.wait(lambda: job.step > further, "steps beside the full disk")
        # A replacement starts although there is no room for its log.
        job.kill(before[1])
        job.ranks(2, after=before[0].round)
        (disk / "others").unlink()
        assert job.event("log.resumed", node=before[0].node)["bytes"] > 0
        assert not job.events("worker.failed"), job.story()
        assert not job.events("fault.retry"), job.story()
        job.finish()
    logs = [path.read_bytes() for path in disk.glob("*/round-*/*/rank-*/stdout.log")]
    assert any(b"bytes could not be written here" in log for log in logs)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """A directory over which a read-only view of itself can be mounted."""
    place = tmp_path / "logs"
    place.mkdir()
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def make_read_only(place: Path) -> None:
    bind = ["mount", "--bind", str(place), str(place)]
    if os.geteuid() != 0 or subprocess.run(bind, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)


def test_no_worker_hears_of_a_log_disk_that_becomes_read_only(logs: Path, tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--redirects", "3", "--log-dir", str(logs))
    with Job(tmp_path, "steps.py", *options, kind="loud") as job:
        before = job.ranks(2)
        make_read_only(logs)
        job.kill(before[1])
        after = job.ranks(2, after=before[0].round)
        assert after[0].pid == before[0].pid
        job.event("log.dropped", why="Read-only file system")
        subprocess.run(["umount", str(logs)], check=True)
        assert job.event("log.resumed")["bytes"] > 0
        assert not job.events("worker.failed"), job.story()
        job.finish()
    texts = [path.read_bytes() for path in logs.glob("*/round-*/*/rank-*/stdout.log")]
    assert any(b"bytes could not be written here" in text for text in texts)


def test_a_log_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    os.mkfifo(logs / "hangs")
    environ = {"PYTHONPATH": str(_HANGING), "ELASTIC_TEST_HANG": str(logs / "hangs")}
    options = ("--redirects", "3", "--log-dir", str(logs))
    with Job(tmp_path, "steps.py", *options, environ=environ) as job:
        before = job.ranks(1)
        job.kill(before[0])
        job.ranks(1, after=before[0].round)
        assert os.listdir(logs) == ["hangs"]
        waiting = os.open(logs / "hangs", os.O_WRONLY)
        (tmp_path / "free").touch()
        (tmp_path / "free").rename(logs / "hangs")
        os.close(waiting)
        job.finish()
    assert len(list(logs.glob("*/round-*/*/rank-*/stdout.log"))) == 2


GOES_WRONG = """
import glob, os, shutil, sys, time

if sys.argv[2] == "gone":
    while len(glob.glob(sys.argv[1] + "/*/round-1/*/rank-0/std*.log")) < 2:
        time.sleep(0.01)  # the agent makes them meanwhile
    shutil.rmtree(sys.argv[1])
    open(sys.argv[1], "w").close()
raise ValueError("as asked")
"""


@pytest.mark.parametrize("logs", ["there", "gone"])
def test_the_error_is_where_the_report_says(tmp_path: Path, logs: str) -> None:
    script, temporary = tmp_path / "script.py", tmp_path / "tmp"
    script.write_text(GOES_WRONG)
    temporary.mkdir()
    options = ("--cold", "--max-restarts", "0", "--log-dir", str(tmp_path / "logs"))
    ended = zygote.run(
        [*ELASTIC_RUN, *options, "--redirects", "3", str(script), str(tmp_path / "logs"), logs],
        env={**os.environ, **ENVIRONMENT, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    named = re.search(r"error_file: (\S+)", ended.stderr)
    assert named is not None, ended.stderr
    assert "as asked" in Path(named[1]).read_text()
    assert Path(named[1]).is_relative_to(tmp_path / "logs" if logs == "there" else temporary)
    assert bool(list(temporary.glob("elastic-*"))) == (logs == "gone")
    assert ("log.dropped" in ended.stderr) == (logs == "gone"), ended.stderr


def test_what_fails_while_the_agent_ends_is_told_as_well(tmp_path: Path) -> None:
    logs, log, script = tmp_path / "logs", tmp_path / "log", tmp_path / "script.py"
    script.write_text("raise ValueError('as asked')")
    logs.mkdir()
    os.mkfifo(logs / "hangs")
    hanging = {"PYTHONPATH": str(_HANGING), "ELASTIC_TEST_HANG": str(logs / "hangs")}
    options = ("--cold", "--max-restarts", "0", "--log-dir", str(logs))
    command = [*ELASTIC_RUN, *options, str(script)]
    with log.open("w") as told:
        job = subprocess.Popen(command, env=os.environ | ENVIRONMENT | hanging, stderr=told)
    with job:
        processes.wait_for(lambda: "worker.failed" in log.read_text(), PATIENCE, "the failure")
        assert "log.dropped" not in log.read_text()
        away = logs.rename(tmp_path / "away")
        logs.touch()
        os.close(os.open(away / "hangs", os.O_WRONLY))
        assert job.wait(PATIENCE) == 1, log.read_text()
    assert "log.dropped" in log.read_text()
