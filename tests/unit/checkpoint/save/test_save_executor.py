"""Saves in the background, with one rank: what training waits for, and what it hears."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.save import save_executor, save_scheduler
from elastic_runtime.checkpoint.storage import local_storage, remote_storage
from elastic_runtime.errors import CheckpointError, CheckpointFailed
from elastic_runtime.worker.agreement import Wish
from tests.processes import wait_for
from tests.ranks import entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def saves(path: Path) -> list[str]:
    return [name for name in entries_of(path) if name.startswith("step-")]


class Disk:
    """A disk that can be held up, and can fail."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.open = threading.Event()
        self.fails = False
        self.open.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    durable = local_storage.LocalWriter.sync

    def sync(writer: local_storage.LocalWriter) -> None:
        found.reached.release()
        assert found.open.wait(60)
        if found.fails:
            raise CheckpointFailed("cannot save: the disk is on fire; put it out")
        durable(writer)

    monkeypatch.setattr(local_storage.LocalWriter, "sync", sync)
    yield found
    found.open.set()


def test_training_goes_on_meanwhile_and_the_saved_state_is_that_of_its_step(
    tmp_path: Path, disk: Disk
) -> None:
    model = nn.Linear(3, 3)
    entries: dict[str, Any] = {"model": model, "loss": 1.0}
    ckpt = Checkpointer(tmp_path, entries)
    before = model.weight.detach().clone()
    disk.open.clear()
    ckpt.steps = 1
    ckpt.save()
    with torch.no_grad():
        model.weight.fill_(9)
    entries["loss"] = 9.0
    assert disk.reached.acquire(timeout=60)
    assert ckpt.saved_step == 0, "it is not on disk yet"
    ckpt.save()  # it is being done
    disk.open.set()
    ckpt.wait()
    assert ckpt.saved_step == 1
    again = Checkpointer(tmp_path, entries)
    assert again.resume() == 1
    assert torch.equal(model.weight, before)
    assert entries["loss"] == 1.0


def test_a_synchronous_save_of_the_same_step_waits_for_the_one_under_way(
    tmp_path: Path, disk: Disk
) -> None:
    ckpt = Checkpointer(tmp_path, {"a": 1})
    disk.open.clear()
    ckpt.save()
    assert disk.reached.acquire(timeout=60)
    disk.open.set()
    ckpt.save(sync=True)
    assert saves(tmp_path) == ["step-0.term-1"]


def test_one_save_at_a_time(tmp_path: Path, disk: Disk) -> None:
    ckpt = Checkpointer(tmp_path, {"a": 1}, every=1)
    disk.open.clear()
    ckpt.step()
    assert disk.reached.acquire(timeout=60)
    done = threading.Event()

    def second() -> None:
        ckpt.step()
        done.set()

    beside = threading.Thread(target=second)
    beside.start()
    assert not done.wait(0.2)
    disk.open.set()
    beside.join(60)
    ckpt.close()
    assert saves(tmp_path) == ["step-1.term-1", "step-2.term-1"]


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
    monkeypatch.setattr(save_scheduler, "_PATIENCE", 0.1)
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


@pytest.mark.parametrize("asked", [False, True], ids=["due", "asked for"])
def test_a_save_that_was_given_up_and_does_not_end_is_left_behind(
    tmp_path: Path, disk: Disk, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "_STUCK", 0.1)
    monkeypatch.setattr(save_scheduler, "_PATIENCE", 0.1)
    ckpt = Checkpointer(tmp_path, {"a": 1}, every=1)
    disk.open.clear()
    ckpt.step()
    assert disk.reached.acquire(timeout=60)
    stuck = ckpt._executor._in_flight
    assert stuck is not None
    assert ckpt._executor.enter(None), "the world has changed"
    ckpt._scheduler.enter(lost=True)
    if asked:
        ckpt.steps += 1
        ckpt.save()
    until = time.monotonic() + 60.0
    while not disk.reached.acquire(blocking=False):  # another save has come as far
        assert time.monotonic() < until
        ckpt.step()
    assert not stuck.task.has_ended
    disk.open.set()
    ckpt.close()
    assert ckpt.saved_step > stuck.step


class _Objects(MemoryFileSystem):
    """A store of objects: it has no folders, so that none can be there already."""

    protocol = "objects"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def mkdir(self, *args: Any, **kwargs: Any) -> None:
        pass

    def makedirs(self, *args: Any, **kwargs: Any) -> None:
        pass


@pytest.mark.parametrize("sync", [False, True], ids=["beside", "at once"])
def test_what_is_left_behind_takes_nothing_from_the_same_step_saved_again(
    sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "_STUCK", 0.1)
    fsspec.register_implementation("objects", _Objects, clobber=True)
    _Objects.store.clear()
    reached, go, first = threading.Event(), threading.Event(), [True]
    writer = remote_storage.RemoteStorage.writer

    def held_up(
        storage: remote_storage.RemoteStorage, which: CheckpointId, name: str, size: int
    ) -> Any:
        if first:
            first.pop()
            reached.set()
            assert go.wait(60)
        return writer(storage, which, name, size)

    monkeypatch.setattr(remote_storage.RemoteStorage, "writer", held_up)
    ckpt = Checkpointer("objects://bucket/run", {"a": torch.zeros(8)})
    ckpt.steps = 10
    ckpt.save()
    assert reached.wait(60)
    flight = ckpt._executor._in_flight
    assert flight is not None
    assert ckpt._executor.enter(None), "the world has changed, and memory is still that of the step"
    ckpt._scheduler.enter(lost=True)
    ckpt.save(sync=sync)
    ckpt.wait()
    kept = {name for name in _Objects.store if "step-10" in name}
    assert any(name.endswith(MANIFEST) for name in kept), kept
    go.set()
    assert flight.task.wait(lambda: None, 60)
    assert kept <= set(_Objects.store)
    ckpt.steps = 20
    ckpt.save(sync=True)
    ckpt.close()
    assert ckpt.saved_step == 20


def test_a_snapshot_does_not_wait_for_what_is_left_behind(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "_STUCK", 0.1)
    ckpt = Checkpointer(tmp_path, {"a": torch.zeros(8)}, every="1h", snapshot_every="1s")
    disk.open.clear()
    ckpt.steps = 1
    ckpt.save()
    assert disk.reached.acquire(timeout=60)
    ckpt._executor.enter(None)
    monkeypatch.setattr(type(ckpt._snapshots), "wanted", True)
    peers = ckpt._ready().peers
    assert Wish.BUSY in ckpt._wishes(peers)
    wait_for(lambda: Wish.BUSY not in ckpt._wishes(peers), 60, "the end of the patience")
    disk.open.set()


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
    monkeypatch.setattr(save_executor, "_PAUSES", (0.0, 0.0))
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


def test_the_image_is_made_once(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, {"model": nn.Linear(3, 3)}, every="2 steps")
    ckpt.step()
    image = ckpt._executor._memory.image
    assert image is not None, "before the first save, beside training"
    for _ in range(5):
        ckpt.step()
    assert ckpt._executor._memory.image is image
    ckpt.close()
    assert ckpt._executor._memory.image is None


def test_a_state_that_changes_its_shape_is_planned_anew(tmp_path: Path) -> None:
    entries: dict[str, Any] = {"a": torch.ones(3)}
    ckpt = Checkpointer(tmp_path, entries, every=1)
    for size in (3, 4, 4, 2):
        entries["a"] = torch.full((size,), size)
        ckpt.step()
    ckpt.close()
    assert Checkpointer(tmp_path, entries).resume() == 4
    assert entries["a"].tolist() == [2, 2]


def test_synchronous_saves_take_no_memory(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, {"model": nn.Linear(3, 3)}, every=1, sync=True)
    ckpt.step()
    assert saves(tmp_path) == ["step-1.term-1"]
    assert ckpt._executor._memory.image is None


_FORGETFUL = """
import sys, time, torch
from elastic_runtime import Checkpointer
from elastic_runtime.checkpoint.storage import local_storage

durable = local_storage.LocalWriter.sync
def slowly(writer):
    time.sleep(0.2)  # until the program is over
    durable(writer)
local_storage.LocalWriter.sync = slowly

ckpt = Checkpointer(sys.argv[1], {"model": torch.nn.Linear(300, 300)})
ckpt.save()
"""


def test_a_program_that_just_ends_has_its_last_save_finished(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", _FORGETFUL, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=True,
    )
    assert Checkpointer(tmp_path, {"model": nn.Linear(300, 300)}).resume() == 0
    assert (tmp_path / "step-0.term-1" / "MANIFEST.json").exists()
