"""Temporary files for which there is no room: no agent ends for it, and no worker."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.protocol.messages import ProgressFile
from tests.integration.in_place.job import ELASTIC_RUN
from tests.mounts import small_disk, with_a_read_only_root
from tests.processes import Launcher, wait_for
from tests.strangers import unused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "256k") as place:
        yield place


def test_without_any_place_for_them_it_says_so() -> None:
    done = subprocess.run(
        with_a_read_only_root([*ELASTIC_RUN, "-m", "elastic_runtime.examples.digits"]),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("elastic-run: error: temporary files cannot be made anywhere")
    assert "mount one at /tmp" in line


def fill(place: Path) -> None:
    with open(place / "others", "wb", buffering=0) as file, pytest.raises(OSError, match="space"):
        while True:
            file.write(bytes(4096))


def test_a_progress_file_is_no_hole(small: Path) -> None:
    first = ProgressFile(str(small / "first"), create=True)
    fill(small)
    with pytest.raises(OSError, match="No space left on device"):
        ProgressFile(str(small / "second"), create=True)
    # The one that is there can be written, and be taken over by the next worker.
    publishes = f"""
from elastic_runtime.protocol.messages import ProgressFile
file = ProgressFile({str(small / "first")!r})
file.publish(7, 1, 1)
"""
    subprocess.run([sys.executable, "-c", publishes], check=True, timeout=PATIENCE)
    assert first.read() == (7, 1, 1)
    first.close()
    again = ProgressFile(str(small / "first"), create=True)
    assert again.read() == (-1, 0, 0)
    again.close()


def test_an_agent_goes_on_without_room_for_progress(small: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; print('progress', repr(os.environ['ELASTIC_PROGRESS']))\n")
    (told := tmp_path / "told").mkdir()
    where = ("--rdzv-endpoint", f"c10d://127.0.0.1:{unused()}", "--run-id", "full", "--cold")
    bounds = ("--min", "2", "--max", "2", "--log-format", "json")

    def start(name: str, temporary: Path) -> subprocess.Popen[bytes]:
        with (
            open(tmp_path / f"{name}.out", "wb") as out,
            open(tmp_path / f"{name}.err", "wb") as err,
        ):
            words = (*bounds, *where, "--node-name", name, script)
            return launch(*words, environ={"TMPDIR": str(temporary)}, stdout=out, stderr=err)

    def events(name: str) -> list[dict[str, Any]]:
        lines = (tmp_path / f"{name}.err").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def story() -> str:
        return "\n".join(path.read_text() for path in tmp_path.glob("*.err"))

    with Launcher(tmp_path) as launch:
        one = start("one", small)
        wait_for(lambda: list(small.glob("elastic-agent-*/agent.sock")), PATIENCE, "its start")
        fill(small)
        assert [node.wait(PATIENCE) for node in (one, start("two", told))] == [0, 0], story()
    (off,) = [event for event in events("one") if event["event"] == "progress.off"]
    assert off["why"] == "No space left on device"
    assert off["path"].startswith(str(small))
    assert not [event for event in events("two") if event["event"] == "progress.off"]
    assert "progress ''" in (tmp_path / "one.out").read_text()
