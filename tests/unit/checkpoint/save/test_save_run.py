"""One save: what it leaves when it fails, and what it clears up when it succeeds."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.save import save_executor, save_run
from elastic_runtime.checkpoint.save.background_thread import Abandoned
from elastic_runtime.checkpoint.storage import local_storage
from elastic_runtime.checkpoint.storage.catalog import remove_unfinished
from elastic_runtime.errors import CheckpointFailed
from tests.ranks import run_ranks, saves

if TYPE_CHECKING:
    from pathlib import Path


def messages(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    said = [record.msg % record.args for record in caplog.records]
    return [one for one in said if one.startswith(f"checkpoint.{event} ")]


def test_a_save_that_is_not_as_planned_leaves_nothing_and_uses_its_term_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(save_executor, "LAST_SAVE_RETRY_PAUSES", (0.0,))
    ckpt = Checkpointer(tmp_path, {"a": torch.ones(4)})
    with monkeypatch.context() as patch:
        patch.setattr(save_run, "not_as_planned", lambda *_: 0)
        with pytest.raises(CheckpointFailed, match="what rank 0 has written is not what was pl"):
            ckpt.save(sync=True)
    assert saves(tmp_path) == []
    failed = messages(caplog, "save_failed")
    assert failed and all("not what was planned" in one for one in failed)
    ckpt.save(sync=True)
    (made,) = saves(tmp_path)
    assert made == f"step-0.term-{len(failed) + 1}", "each try has taken a term of its own"


def test_a_save_that_was_abandoned_is_an_event_and_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ckpt = Checkpointer(tmp_path, {"a": torch.ones(4)})
    write = save_run.write_file

    def disowned_meanwhile(*args: Any, **options: Any) -> Any:
        ckpt._executor.term.detach()
        return write(*args, **options)

    monkeypatch.setattr(save_run, "write_file", disowned_meanwhile)
    with pytest.raises(Abandoned):
        ckpt.save(sync=True)
    assert saves(tmp_path) == []
    (discarded,) = messages(caplog, "save_discarded")
    assert "the world has changed" in discarded


def test_what_was_committed_before_an_error_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a peer dies before it has heard of the commit."""
    caplog.set_level("INFO")

    def lost(*_: object) -> None:
        raise CheckpointFailed("a peer is gone")

    ckpt = Checkpointer(tmp_path, {"a": torch.ones(4)})
    monkeypatch.setattr(ckpt._executor.term, "note_committed", lost)
    ckpt.save(sync=True)
    assert saves(tmp_path) == ["step-0.term-1"]
    assert len(messages(caplog, "saved")) == 1
    assert not messages(caplog, "save_failed")


def test_a_state_that_is_saved_already_is_not_written_again(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, {"a": torch.ones(4)})
    ckpt.steps = 1
    ckpt.save(sync=True)
    manifest = tmp_path / "step-1.term-1" / "MANIFEST.json"
    before = manifest.read_bytes()
    ckpt._scheduler.enter(lost=True)
    ckpt.save(sync=True)
    assert manifest.read_bytes() == before
    assert saves(tmp_path) == ["step-1.term-1"]


def test_rests_of_older_terms_go_with_the_first_save_of_a_newer_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    storage = local_storage.LocalStorage(tmp_path)
    for which, file in (
        (CheckpointId(1, 7), "rank-0.distcp"),
        (CheckpointId(2, 8), "MANIFEST.json.partial"),
        (CheckpointId(2, 9), "precious.txt"),
        (CheckpointId(4, 9), "rank-0.distcp"),  # of somebody who has a newer term by now
    ):
        assert storage.create(which)
        with storage.writer(which, file, 4) as out:
            out.write([memoryview(b"half")])
    assert remove_unfinished(storage, 2) == [], "who does not hold the newest term removes nothing"
    assert len(saves(tmp_path)) == 4
    (tmp_path / "step-9.term-4").rename(tmp_path / "step-9.term-3")
    ckpt = Checkpointer(tmp_path, {"a": 1})  # keeps all that is whole
    ckpt.save(sync=True)
    assert saves(tmp_path) == ["step-0.term-4", "step-9.term-2"], "what is not ours stays"
    told = [r.msg % r.args for r in caplog.records if "rests_removed" in r.msg % r.args]
    assert len(told) == 2, "before the save and after it"
    assert "step-7.term-1" in told[0]
    assert "step-9.term-3" in told[1]
    other = tmp_path / "step-1.term-1"
    other.mkdir()
    ckpt.steps = 1
    ckpt.save(sync=True)
    assert other.exists(), "it has looked once in its term"


def _killed_in_its_first_save(path: str) -> None:
    def kill(writer: local_storage.LocalWriter) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    local_storage.LocalWriter.sync = kill  # type: ignore[method-assign]
    Checkpointer(path, {"a": torch.ones(1000)}).save(sync=True)


def test_rests_of_lives_that_all_end_in_a_save_do_not_pile_up(tmp_path: Path) -> None:
    """They may be what has filled the disk, which ends the next life in its save."""
    counts = []
    for _ in range(5):
        (outcome,) = run_ranks(1, _killed_in_its_first_save, str(tmp_path))
        assert outcome.signal == signal.SIGKILL
        counts.append(len(saves(tmp_path)))
    assert counts == [1, 2, 2, 2, 2], "its own, and that of the life before"
    assert saves(tmp_path) == ["step-0.term-4", "step-0.term-5"]


def test_what_could_not_be_cleared_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_storage.LocalStorage(tmp_path).take_term({}) == 1
    (tmp_path / "step-1.term-1").mkdir()
    ckpt = Checkpointer(tmp_path, {"a": 1})
    with monkeypatch.context() as patch:

        def refused(*_: object) -> None:
            raise CheckpointFailed("the storage is away; look at it")

        patch.setattr(save_run, "remove_unfinished", refused)
        ckpt.save(sync=True)
    assert saves(tmp_path) == ["step-0.term-2", "step-1.term-1"]
    ckpt.steps = 1
    ckpt.save(sync=True)
    assert saves(tmp_path) == ["step-0.term-2", "step-1.term-2"]
