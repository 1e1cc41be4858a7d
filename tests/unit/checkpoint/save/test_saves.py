"""Saves with one rank: what training waits for and hears, and what a save leaves when it fails."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn

import elastic_runtime as elastic
from elastic_runtime import State
from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.save import save_executor, save_run, save_scheduler
from elastic_runtime.checkpoint.save.background_thread import Abandoned
from elastic_runtime.checkpoint.storage import local_storage, remote_storage
from elastic_runtime.checkpoint.storage.catalog import remove_unfinished
from elastic_runtime.errors import CheckpointError, CheckpointFailed, SaveOverdue
from elastic_runtime.worker.agreement import Wish
from tests.processes import wait_for
from tests.ranks import run_ranks, saves
from tests.trained import cut_off, trained
from tests.unit.checkpoint.states import save, state_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.checkpoint.save.conftest import Disk, Said


def saver_of(state: State) -> Any:
    """What saves it, while it is trained."""
    assert state._saver is not None
    return state._saver


def under_way(state: State) -> Any:
    """The save in the background."""
    flight = saver_of(state)._executor._in_flight
    assert flight is not None
    return flight


def enter_another_world(state: State) -> None:
    """As in place, when memory is still that of the step."""
    saver = saver_of(state)
    saver._scheduler.enter(lost=saver._executor.enter(None))


def test_the_end_says_that_the_last_saves_failed(disk: Disk, said: Said) -> None:
    state = state_in(disk.path, every=1)
    with cut_off(state):
        state.commit()
        state.save(sync=True)
        disk.fails = True
        for _ in range(2):  # the second one hears of the failure, and the next save is not due yet
            state.commit()
            flight = saver_of(state)._executor._in_flight
            assert flight is None or flight.task.wait(lambda: None, 60)
    [end] = said("ends_unsaved")
    assert "training ends at step 3 and only step 1 is saved: the last save failed" in end
    disk.fails = False
    save(disk.path)
    assert said("ends_unsaved") == [end]


@pytest.mark.parametrize("every", [1, "10ms"])
def test_training_does_not_wait_for_a_save_that_does_not_end(
    disk: Disk, said: Said, every: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_scheduler, "PREVIOUS_SAVE_TIMEOUT", 0.1)
    state = state_in(disk.path, every=every)
    until = time.monotonic() + 60.0

    def train_until(done: Callable[[], object]) -> None:
        while not done():
            assert time.monotonic() < until
            state.commit()

    with trained(state):
        saver = saver_of(state)
        disk.open.clear()
        train_until(lambda: disk.reached.acquire(blocking=False))
        saved = saver._scheduler.begun
        assert saved is not None
        train_until(lambda: state.step >= saved + 200 and said("save_late"))
        assert len(said("save_late")) == 1, "once a minute"
        assert not saver.saved_step, "it is not on disk yet"
        disk.open.set()
        put_off = state.step
        train_until(lambda: saver.saved_step > put_off)
    assert f"step-{saved}.term-1" in saves(disk.path)
    assert not said("save_failed")


def test_a_failure_is_heard_at_the_next_step_and_older_checkpoints_stay(
    disk: Disk, said: Said
) -> None:
    state = state_in(disk.path, every="2 steps", keep=1, on_error="raise")
    with trained(state):
        state.commit()
        state.commit()
        state.save(sync=True)
        disk.fails = True
        state.commit()
        state.commit()
        assert under_way(state).task._ended.wait(60)
        with pytest.raises(CheckpointError, match="on fire"):
            state.commit()
        assert saves(disk.path) == ["step-2.term-1"]
        assert said("save_failed")
        disk.fails = False
        state.commit()  # goes on, for a program that can live without the one
    assert saves(disk.path) == ["step-6.term-2"], "the name of one that failed is not used again"


def test_saves_that_fail_for_too_long_end_training(disk: Disk) -> None:
    state = state_in(disk.path, every=1, sync=True, max_age="3 steps")
    with pytest.raises(SaveOverdue, match="on fire"), trained(state):
        state.commit()
        disk.fails = True
        for _ in range(3):
            state.commit()
            saver_of(state)._scheduler.enter(lost=True)  # it need not wait to try again
        pytest.fail("it should have ended")
    assert state.step == 4
    assert saves(disk.path) == ["step-1.term-1"]


def test_the_end_of_training_tries_again_and_hears_of_a_failure(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "LAST_SAVE_RETRY_PAUSES", (0.0, 0.0))
    state = state_in(disk.path)
    with pytest.raises(CheckpointFailed, match=r"step 1 is not saved.*on fire.*tried 3 times"):
        with trained(state):
            state.commit()
            disk.fails = True
    disk.fails = False
    save(disk.path)
    assert saves(disk.path) == ["step-1.term-4"]


def test_a_synchronous_save_makes_up_for_one_that_failed(disk: Disk) -> None:
    state = state_in(disk.path)
    with cut_off(state):
        state.commit()
        disk.fails = True
        state.save()
        assert under_way(state).task._ended.wait(60)
        disk.fails = False
        state.save(sync=True)  # of the same step
        assert saves(disk.path) == ["step-1.term-2"]


# Saves in the background, with one rank: what training waits for, and what it hears


def test_training_goes_on_meanwhile_and_the_saved_state_is_that_of_its_step(disk: Disk) -> None:
    model = nn.Linear(3, 3)
    state = state_in(disk.path, {"model": model, "loss": 1.0})
    before = model.weight.detach().clone()
    with cut_off(state):
        state.commit()
        disk.hold_up(state.save)
        with torch.no_grad():
            model.weight.fill_(9)
        state.loss = 9.0
        assert saver_of(state).saved_step == 0, "it is not on disk yet"
        state.save()  # it is being done
        disk.open.set()
        state.save(sync=True)
        assert saver_of(state).saved_step == 1
    assert elastic.load(disk.path, state) == 1
    assert torch.equal(model.weight, before)
    assert state.loss == 1.0


def test_a_synchronous_save_of_the_same_step_waits_for_the_one_under_way(disk: Disk) -> None:
    state = state_in(disk.path)
    with cut_off(state):
        state.commit()
        disk.hold_up(state.save)
        disk.open.set()
        state.save(sync=True)
        assert saves(disk.path) == ["step-1.term-1"]


def test_one_save_at_a_time(disk: Disk) -> None:
    state = state_in(disk.path, every=1)
    with cut_off(state):
        disk.hold_up(state.commit)
        beside = threading.Thread(target=state.commit)
        beside.start()
        beside.join(0.2)
        assert beside.is_alive()
        disk.open.set()
        beside.join(60)
        state.save(sync=True)
        assert saves(disk.path) == ["step-1.term-1", "step-2.term-1"]


@pytest.mark.parametrize("asked", [False, True], ids=["due", "asked for"])
def test_a_save_that_was_given_up_and_does_not_end_is_left_behind(
    disk: Disk, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "ABANDONED_SAVE_TIMEOUT", 0.1)
    monkeypatch.setattr(save_scheduler, "PREVIOUS_SAVE_TIMEOUT", 0.1)
    state = state_in(disk.path, every=1)
    with cut_off(state):
        disk.hold_up(state.commit)
        stuck = under_way(state)
        enter_another_world(state)
        if asked:
            state.save()
        until = time.monotonic() + 60.0
        while not disk.reached.acquire(blocking=False):  # another save has come as far
            assert time.monotonic() < until
            state.commit()
        assert not stuck.task.has_ended
        disk.open.set()
        state.commit()
        state.save(sync=True)
        assert saver_of(state).saved_step > stuck.step


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

    def held_up(*args: Any) -> Any:
        if first:
            first.pop()
            reached.set()
            assert go.wait(60)
        return writer(*args)

    monkeypatch.setattr(remote_storage.RemoteStorage, "writer", held_up)
    state = state_in("objects://bucket/run", {"a": torch.zeros(8)})
    with cut_off(state):
        state.commit()
        state.save()
        assert reached.wait(60)
        flight = under_way(state)
        enter_another_world(state)
        state.save(sync=sync)
        saver_of(state).wait()
        kept = {name for name in _Objects.store if "step-1." in name}
        assert any(name.endswith(MANIFEST) for name in kept), kept
        go.set()
        assert flight.task.wait(lambda: None, 60)
        assert kept <= set(_Objects.store)
        state.commit()
        state.save(sync=True)
        assert saver_of(state).saved_step == 2


def test_a_snapshot_does_not_wait_for_what_is_left_behind(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "ABANDONED_SAVE_TIMEOUT", 0.1)
    state = state_in(disk.path, {"a": torch.zeros(8)}, every="1h", snapshots="1s")
    with cut_off(state):
        disk.open.clear()
        state.commit()
        saver = saver_of(state)
        state.save()
        assert disk.reached.acquire(timeout=60)
        enter_another_world(state)
        monkeypatch.setattr(type(saver._snapshots), "wanted", True)
        assert Wish.BUSY in saver.wishes()
        wait_for(lambda: Wish.BUSY not in saver.wishes(), 60, "the end of the patience")
        disk.open.set()


def test_the_image_is_made_once(tmp_path: Path) -> None:
    state = state_in(tmp_path, {"model": nn.Linear(3, 3)}, every="2 steps")
    with trained(state):
        state.commit()
        memory = saver_of(state)._executor._memory
        image = memory.image
        assert image is not None, "before the first save, beside training"
        for _ in range(5):
            state.commit()
        assert memory.image is image


def test_a_state_that_changes_its_shape_is_planned_anew(tmp_path: Path) -> None:
    state = state_in(tmp_path, {"a": torch.ones(3)}, every=1)
    with trained(state):
        for size in (3, 4, 4, 2):
            state.a = torch.full((size,), size)
            state.commit()
    again = State(a=torch.ones(3))
    assert elastic.load(tmp_path, again) == 4
    assert again.a.tolist() == [2, 2]


def test_synchronous_saves_take_no_memory(tmp_path: Path) -> None:
    state = state_in(tmp_path, {"model": nn.Linear(3, 3)}, every=1, sync=True)
    with cut_off(state):
        state.commit()
        assert saves(tmp_path) == ["step-1.term-1"]
        state.save()
        assert saver_of(state)._executor._memory.image is None


# One save: what it leaves when it fails, and what it clears up when it succeeds


def test_a_save_that_is_not_as_planned_leaves_nothing_and_uses_its_term_up(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_executor, "LAST_SAVE_RETRY_PAUSES", (0.0,))
    state = state_in(tmp_path, {"a": torch.ones(4)})
    with cut_off(state):
        state.commit()
        with monkeypatch.context() as patch:
            patch.setattr(save_run, "not_as_planned", lambda *_: 0)
            with pytest.raises(CheckpointFailed, match="what rank 0 has written is not what was p"):
                state.save(sync=True)
        assert saves(tmp_path) == []
        failed = said("save_failed")
        assert failed and all("not what was planned" in one for one in failed)
        state.save(sync=True)
    (made,) = saves(tmp_path)
    assert made == f"step-1.term-{len(failed) + 1}", "each try has taken a term of its own"


def test_a_save_that_was_abandoned_is_an_event_and_no_checkpoint(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_in(tmp_path, {"a": torch.ones(4)})
    write = save_run.write_file

    def disowned_meanwhile(*args: Any, **options: Any) -> Any:
        saver_of(state)._executor.term.detach()
        return write(*args, **options)

    monkeypatch.setattr(save_run, "write_file", disowned_meanwhile)
    with pytest.raises(Abandoned), trained(state):
        state.commit()
        state.save(sync=True)
    assert saves(tmp_path) == []
    (discarded,) = said("save_discarded")
    assert "the world has changed" in discarded


def test_what_was_committed_before_an_error_is_saved(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a peer dies before it has heard of the commit."""

    def lost(*_: object) -> None:
        raise CheckpointFailed("a peer is gone")

    state = state_in(tmp_path, {"a": torch.ones(4)})
    with trained(state):
        state.commit()
        monkeypatch.setattr(saver_of(state)._executor.term, "note_committed", lost)
    assert saves(tmp_path) == ["step-1.term-1"]
    assert len(said("saved")) == 1
    assert not said("save_failed")


def test_a_state_that_is_saved_already_is_not_written_again(tmp_path: Path) -> None:
    state = state_in(tmp_path, {"a": torch.ones(4)})
    with trained(state):
        state.commit()
        state.save(sync=True)
        manifest = tmp_path / "step-1.term-1" / MANIFEST
        before = manifest.read_bytes()
        enter_another_world(state)
    assert manifest.read_bytes() == before
    assert saves(tmp_path) == ["step-1.term-1"]


def test_rests_of_older_terms_go_with_the_first_save_of_a_newer_one(
    tmp_path: Path, said: Said
) -> None:
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
    state = state_in(tmp_path)  # keeps all that is whole
    with trained(state):
        state.commit()
        state.save(sync=True)
        assert saves(tmp_path) == ["step-1.term-4", "step-9.term-2"], "what is not ours stays"
        told = said("rests_removed")
        assert len(told) == 2, "before the save and after it"
        assert "step-7.term-1" in told[0]
        assert "step-9.term-3" in told[1]
        other = tmp_path / "step-2.term-1"
        other.mkdir()
        state.commit()
    assert other.exists(), "it has looked once in its term"


def _killed_in_its_first_save(path: str) -> None:
    def kill(writer: local_storage.LocalWriter) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    del os.environ["RANK"]  # no launcher has started it
    local_storage.LocalWriter.sync = kill  # type: ignore[method-assign]
    save(path, {"a": torch.ones(1000)})


def test_rests_of_lives_that_all_end_in_a_save_do_not_pile_up(tmp_path: Path) -> None:
    """They may be what has filled the disk, which ends the next life in its save."""
    counts = []
    for _ in range(5):
        (outcome,) = run_ranks(1, _killed_in_its_first_save, str(tmp_path))
        assert outcome.signal == signal.SIGKILL
        counts.append(len(saves(tmp_path)))
    assert counts == [1, 2, 2, 2, 2], "its own, and that of the life before"
    assert saves(tmp_path) == ["step-1.term-4", "step-1.term-5"]


def test_what_could_not_be_cleared_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_storage.LocalStorage(tmp_path).take_term({}) == 1
    (tmp_path / "step-2.term-1").mkdir()
    state = state_in(tmp_path)
    with trained(state):
        state.commit()
        with monkeypatch.context() as patch:

            def refused(*_: object) -> None:
                raise CheckpointFailed("the storage is away; look at it")

            patch.setattr(save_run, "remove_unfinished", refused)
            state.save(sync=True)
        assert saves(tmp_path) == ["step-1.term-2", "step-2.term-1"]
        state.commit()
    assert saves(tmp_path) == ["step-1.term-2", "step-2.term-2"]
