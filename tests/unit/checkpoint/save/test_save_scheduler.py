"""What follows from a save that fails or does not end: who hears of it, and what goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.save import save_executor, save_scheduler
from elastic_runtime.errors import CheckpointError, CheckpointFailed
from tests.ranks import saves

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.checkpoint.save.conftest import Disk


def test_the_end_says_that_the_last_saves_failed(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [r.msg % r.args for r in caplog.records if "ends_unsaved" in r.msg % r.args]

    caplog.set_level("INFO", "elastic_runtime")
    ckpt = Checkpointer(tmp_path, {"a": 1}, every=1)
    ckpt.step()
    ckpt.wait()
    disk.fails = True
    for _ in range(2):  # the second one hears of the failure, and the next save is not due yet
        ckpt.step()
        flight = ckpt._executor._in_flight
        assert flight is None or flight.task.wait(lambda: None, 60)
    ckpt.close()
    [end] = said()
    assert (
        f"training ends at step {ckpt.steps} and only step 1 is saved: the last save failed" in end
    )
    caplog.clear()
    disk.fails = False
    again = Checkpointer(tmp_path, {"a": 1}, every=1)
    again.resume()
    again.step()
    again.close()
    assert not said()


@pytest.mark.parametrize("every", [1, "10ms"])
def test_training_does_not_wait_for_a_save_that_does_not_end(
    tmp_path: Path,
    disk: Disk,
    every: int | str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(save_scheduler, "PREVIOUS_SAVE_TIMEOUT", 0.1)
    ckpt = Checkpointer(tmp_path, {"a": 1}, every=every)
    disk.open.clear()
    until = time.monotonic() + 60.0
    while not disk.reached.acquire(blocking=False):
        assert time.monotonic() < until
        ckpt.step()
    saved = ckpt._scheduler.begun
    assert saved is not None
    late: list[str] = []
    while ckpt.steps < saved + 200 or not late:
        assert time.monotonic() < until
        ckpt.step()
        late = [r.msg % r.args for r in caplog.records if "save_late" in r.msg % r.args]
    assert len(late) == 1, "once a minute"
    assert not ckpt.saved_step, "it is not on disk yet"
    disk.open.set()
    put_off = ckpt.steps
    while ckpt.saved_step <= put_off:
        assert time.monotonic() < until
        ckpt.step()
    ckpt.close()
    assert f"step-{saved}.term-1" in saves(tmp_path)
    assert not [r for r in caplog.records if "save_failed" in r.msg % r.args]


def test_a_failure_is_heard_at_the_next_step_and_older_checkpoints_stay(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    entries: dict[str, Any] = {"a": 1}
    ckpt = Checkpointer(tmp_path, entries, every="2 steps", keep=1, on_save_error="raise")
    ckpt.step()
    ckpt.step()
    ckpt.wait()
    disk.fails = True
    ckpt.step()
    ckpt.step()
    flight = ckpt._executor._in_flight
    assert flight is not None
    assert flight.task._ended.wait(60)
    with pytest.raises(CheckpointError, match="on fire"):
        ckpt.step()
    assert ckpt.saved_step == 2
    assert saves(tmp_path) == ["step-2.term-1"]
    assert [r for r in caplog.records if "save_failed" in r.msg % r.args]
    disk.fails = False
    ckpt.step()  # goes on, for a program that can live without the one
    ckpt.save()
    ckpt.close()
    assert saves(tmp_path) == ["step-6.term-2"], "the name of one that failed is not used again"


@pytest.mark.parametrize("call", ["wait", "close"])
def test_a_failure_is_heard_by_whoever_waits(
    tmp_path: Path, disk: Disk, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "LAST_SAVE_RETRY_PAUSES", (0.0, 0.0))
    ckpt = Checkpointer(tmp_path, {"a": 1})
    disk.fails = True
    ckpt.save()
    ckpt.steps += 1
    with pytest.raises(CheckpointFailed, match=r"on fire.*tried 3 times"):
        getattr(ckpt, call)()
    disk.fails = False
    ckpt.save(sync=True)
    assert saves(tmp_path) == ["step-1.term-4"]


def test_a_synchronous_save_makes_up_for_one_that_failed(tmp_path: Path, disk: Disk) -> None:
    ckpt = Checkpointer(tmp_path, {"a": 1})
    disk.fails = True
    ckpt.save()
    assert disk.reached.acquire(timeout=60)
    flight = ckpt._executor._in_flight
    assert flight is not None
    assert flight.task._ended.wait(60)
    disk.fails = False
    ckpt.save(sync=True)  # of the same step
    assert saves(tmp_path) == ["step-0.term-2"]
