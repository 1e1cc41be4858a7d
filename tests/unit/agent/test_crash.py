"""What follows from a defect of the package in a thread of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.agent.crash import ended_by, fault_of
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig, Output
from elastic_runtime.errors import EXIT_CRASHED
from elastic_runtime.protocol.records import LOST
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.system.threads import Crash

if TYPE_CHECKING:
    import pytest

CRASH = Crash("heartbeat", "KeyError: 1", "Traceback …\nKeyError: 1\n")


def _config(log_dir: str) -> JobConfig:
    entry, endpoint = Entry(SCRIPT, "train.py"), Endpoint("etcd", ("h:1",))
    return JobConfig(entry, endpoint, "run", node_name="a", output=Output(log_dir=log_dir))


def test_the_traceback_is_in_a_file_that_the_last_word_names(tmp_path: Path) -> None:
    finish, event = ended_by(CRASH, _config(str(tmp_path)))
    assert finish.exit_code == EXIT_CRASHED
    assert finish.message.startswith("the agent of a has crashed: KeyError: 1 (in its thread heart")
    assert finish.message.endswith(f"the traceback is in {event.file}")
    assert Path(event.file).parent == tmp_path
    assert CRASH.trace in Path(event.file).read_text()


def test_a_traceback_that_cannot_be_written_is_in_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    finish, event = ended_by(CRASH, _config(str(tmp_path / "file")))
    assert event.file == ""
    assert finish.message.endswith(f"it could not be written down:\n{CRASH.trace}")


def test_the_job_pays_for_it_what_a_lost_node_costs() -> None:
    fault = fault_of(CRASH, RoundRecord(3, "x.1", (Member("a", "a", "h", 1),), 4000, "why"))
    assert (fault.round, fault.kind) == (3, LOST)
    assert fault.reason == "the agent has crashed (KeyError: 1)"
