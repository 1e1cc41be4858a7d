"""The term under which a process saves: taken once, checked, and given up when passed."""

from __future__ import annotations

import re
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
from elastic_runtime.checkpoint.save.background_thread import Abandoned
from elastic_runtime.checkpoint.save.save_term import SaveTerm
from elastic_runtime.checkpoint.storage import local_storage
from elastic_runtime.errors import CheckpointUsageError, Superseded
from elastic_runtime.worker.context import WorkerContext
from tests.ranks import entries_of, saves
from tests.trained import trained
from tests.unit.checkpoint.states import state_in

if TYPE_CHECKING:
    from pathlib import Path


ENTRIES = ["model", "optim"]


def term_in(path: Path, run: str = "digits") -> SaveTerm:
    """The term of another process that saves there."""
    return SaveTerm(local_storage.LocalStorage(path), WorkerContext({"TORCHELASTIC_RUN_ID": run}))


def commit(path: Path, which: CheckpointId, entries: list[str] = ENTRIES) -> None:
    """Makes a checkpoint without files, as far as terms go."""
    manifest = Manifest(which.step, which.term, world=1, entries=tuple(entries))
    local_storage.LocalStorage(path).commit(manifest)


def test_a_term_is_taken_once_and_used_for_all_saves(tmp_path: Path) -> None:
    term = term_in(tmp_path)
    assert not tmp_path.exists() or entries_of(tmp_path) == [], "nothing is taken ahead"
    assert [term.acquire(ENTRIES), term.acquire(ENTRIES)] == [1, 1]
    assert entries_of(tmp_path) == ["term-1"]


def test_a_term_that_is_used_up_or_released_is_followed_by_another_one(tmp_path: Path) -> None:
    term = term_in(tmp_path)
    found = [term.acquire(ENTRIES)]
    for give_up in (term.use_up, term.release, term.detach):
        give_up()
        found.append(term.acquire(ENTRIES))
    assert found == [1, 2, 3, 4]


def test_who_has_an_older_term_than_another_process_is_stopped(tmp_path: Path) -> None:
    mine, others = term_in(tmp_path), term_in(tmp_path)
    mine.acquire(ENTRIES)
    others.acquire(ENTRIES)
    with pytest.raises(Superseded):
        mine.acquire(ENTRIES)
    assert others.acquire(ENTRIES) == 2


@pytest.mark.parametrize(("run", "named"), [("other", "run other, "), ("", ""), ("none", "")])
def test_a_place_that_another_job_has_taken_is_told_with_its_holder(
    tmp_path: Path, run: str, named: str
) -> None:
    mine = term_in(tmp_path)
    mine.acquire(ENTRIES)
    term_in(tmp_path, run).acquire(ENTRIES)
    where = re.escape(f"now belongs to term 2 ({named}round 0, {socket.gethostname()}), and this")
    with pytest.raises(CheckpointUsageError, match=where):
        mine.acquire(ENTRIES)


def test_a_save_never_gets_a_directory_in_which_something_is(tmp_path: Path) -> None:
    term = term_in(tmp_path)
    term.acquire(ENTRIES)
    (tmp_path / "step-5.term-1").mkdir()
    (tmp_path / "step-5.term-1" / "precious.txt").write_text("not ours")
    assert term.create(5, ENTRIES) == CheckpointId(2, 5)


def test_a_committed_step_is_found_until_the_job_goes_back(tmp_path: Path) -> None:
    term = term_in(tmp_path)
    made = term.create(5, ENTRIES)
    term.note_committed(made)
    assert term.find_committed(5) is None, "it has no manifest"
    commit(tmp_path, made)
    assert term.find_committed(5) == made
    assert term.find_committed(6) is None
    term.go_back()
    assert term.find_committed(5) is None


def test_memory_that_others_gave_needs_a_newer_term(tmp_path: Path) -> None:
    term = term_in(tmp_path)
    term.acquire(ENTRIES)
    term.about_to_save(CheckpointId(1, 3))
    assert (term.base, term.newest_known) == (CheckpointId(1, 3), 1)
    term.recover_from(CheckpointId(1, 3), 1, take_new_term=False)
    assert term.acquire(ENTRIES) == 1, "its own memory, and nobody has saved since"
    term.recover_from(CheckpointId(4, 9), 4, take_new_term=False)
    assert (term.base, term.newest_known) == (CheckpointId(4, 9), 4)
    assert term.acquire(ENTRIES) == 5


def test_a_directory_with_none_of_these_entries_is_refused_before_a_term_is_taken(
    tmp_path: Path,
) -> None:
    earlier = term_in(tmp_path)
    for step in (1, 2):
        commit(tmp_path, earlier.create(step, ENTRIES))
    words = r"another job: .*step-2\.term-1, .*model, optim, .* job net"
    with pytest.raises(CheckpointUsageError, match=words):
        term_in(tmp_path).acquire(["net"])
    # What cannot be read says nothing of an owner.
    (tmp_path / "step-2.term-1" / "MANIFEST.json").write_text("{")
    with pytest.raises(CheckpointUsageError, match=r"step-1\.term-1"):
        term_in(tmp_path).acquire(["net"])
    assert "term-2" not in entries_of(tmp_path)
    assert term_in(tmp_path).acquire(["net", "optim"]) == 2


def test_a_disowned_save_is_told_so(tmp_path: Path) -> None:
    term = term_in(tmp_path)
    generation = term.generation
    term.check_generation(generation)
    term.detach()
    with pytest.raises(Abandoned):
        term.check_generation(generation)


def test_a_term_that_comes_too_late_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a save that was left behind stood still while it took one."""
    errors = list[BaseException]()
    reached, go = threading.Event(), threading.Event()
    take = local_storage.LocalStorage.take_term

    def late(storage: local_storage.LocalStorage, holder: Any) -> int:
        term = take(storage, holder)
        if threading.current_thread().name == "old":
            reached.set()
            assert go.wait(60)
        return term

    monkeypatch.setattr(local_storage.LocalStorage, "take_term", late)
    state = state_in(tmp_path, {"a": torch.zeros(8)})
    with trained(state):
        saver: Any = state._saver
        save_term = saver._executor.term

        def save() -> None:
            try:
                save_term.create(10, ["a"])
            except BaseException as error:
                errors.append(error)

        old = threading.Thread(target=save, name="old")
        old.start()
        assert reached.wait(60)
        save_term.detach()
        state.commit()
        state.save(sync=True)
        go.set()
        old.join(60)
        assert [type(error).__name__ for error in errors] == ["Abandoned"]
        state.commit()
    assert saves(tmp_path) == ["step-1.term-2", "step-2.term-2"]
