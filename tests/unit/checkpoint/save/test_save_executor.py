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
from elastic_runtime.checkpoint.storage import remote_storage
from elastic_runtime.worker.agreement import Wish
from tests.processes import wait_for
from tests.ranks import saves

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.checkpoint.save.conftest import Disk


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


@pytest.mark.parametrize("asked", [False, True], ids=["due", "asked for"])
def test_a_save_that_was_given_up_and_does_not_end_is_left_behind(
    tmp_path: Path, disk: Disk, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "ABANDONED_SAVE_TIMEOUT", 0.1)
    monkeypatch.setattr(save_scheduler, "PREVIOUS_SAVE_TIMEOUT", 0.1)
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
    monkeypatch.setattr(save_executor, "ABANDONED_SAVE_TIMEOUT", 0.1)
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
    monkeypatch.setattr(save_executor, "ABANDONED_SAVE_TIMEOUT", 0.1)
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
