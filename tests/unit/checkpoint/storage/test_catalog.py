"""The checkpoints of a storage: listed, verified and deleted, and which are kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
from elastic_runtime.checkpoint.storage.catalog import (
    CheckpointStatus,
    decide_kept,
    free_space,
    inspect_checkpoint,
    list_checkpoints,
    prune,
    remove_unfinished,
    verify,
)
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.retention import Retention, apply_retention, parse_retention
from elastic_runtime.errors import CheckpointError
from tests.hostile import make_newer
from tests.ranks import entries_of
from tests.small_checkpoints import FILE, HOLDER, put, write

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.checkpoint.storage.storage_contract import Storage


@pytest.mark.parametrize("bad", [b"state of 1", b"state of 100", b"state 0f 10", b""])
def test_verify_finds_every_damage(tmp_path: Path, bad: bytes) -> None:
    storage = LocalStorage(tmp_path)
    manifest = put(storage, 10)
    assert verify(storage, manifest) == []
    assert inspect_checkpoint(storage, manifest.id).status is CheckpointStatus.WHOLE
    path = tmp_path / manifest.id.name / FILE
    path.write_bytes(bad)
    same_size = len(bad) == manifest.files[0].bytes
    assert inspect_checkpoint(storage, manifest.id).status is (
        CheckpointStatus.WHOLE if same_size else CheckpointStatus.DAMAGED
    )
    if len(bad) <= manifest.files[0].bytes:
        (problem,) = verify(storage, manifest)
        assert str(path) in problem
        if same_size:
            assert "bytes 6 to 11" in problem


def test_verify_does_not_rely_on_the_parts_alone(storage: Storage) -> None:
    manifest = put(storage, 10)
    (file,) = manifest.files
    other = replace(manifest, files=(replace(file, crc32c=file.crc32c ^ 1),))
    (problem,) = verify(storage, other)
    assert "its checksum does not match" in problem


def test_what_only_has_the_name_of_a_checkpoint_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "step-9.term-1").write_text("precious")
    (tmp_path / "step-8.term-1").symlink_to("/nowhere")
    storage = LocalStorage(tmp_path)
    for step in (1, 2):
        put(storage, step=step, term=2)
    prune(storage, Retention(1), 2)
    assert [p.name for p in tmp_path.glob("step-*.term-2")] == ["step-2.term-2"]
    assert (tmp_path / "step-9.term-1").read_text() == "precious"


def test_the_newest_comes_first_and_each_says_how_it_is(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    newer, short, aside = (put(storage, step) for step in (4, 3, 2))
    storage.create(CheckpointId(1, 5))
    make_newer(tmp_path / newer.id.name)
    (tmp_path / short.id.name / FILE).unlink()
    storage.set_aside(aside.id, {"why": "a test"})
    put(storage, 1)
    found = list_checkpoints(storage)
    assert [(one.which.step, one.status) for one in found] == [
        (5, CheckpointStatus.UNFINISHED),
        (4, CheckpointStatus.NEWER),
        (3, CheckpointStatus.DAMAGED),
        (2, CheckpointStatus.ASIDE),
        (1, CheckpointStatus.WHOLE),
    ]
    assert found[2].problem == f"{tmp_path / short.id.name / FILE} is missing"
    assert found[-1].problem == ""


def test_what_holds_a_foreign_file_stays_whatever_the_rule_says(storage: Storage) -> None:
    for step in (1, 2, 3):
        put(storage, step)
    write(storage, CheckpointId(1, 1), "notes.txt", b"a person's")
    decisions = decide_kept(Retention(1), list_checkpoints(storage))
    assert {one.which.step: one.keep for one in decisions} == {3: True, 2: False, 1: True}
    (kept,) = [one for one in decisions if one.which.step == 1]
    assert kept.why == "contains files that are not ours (notes.txt)"


def test_what_is_known_to_be_damaged_does_not_count(storage: Storage) -> None:
    """Its sizes are right: counted, it would be kept in place of one that can be loaded."""
    for step in (1, 2, 3):
        put(storage, step)
    prune(storage, Retention(1), term=1, damaged={CheckpointId(1, 3)})
    assert [one.which.step for one in list_checkpoints(storage)] == [3, 2]


def test_only_saves_of_older_terms_without_foreign_files_are_cleared(storage: Storage) -> None:
    put(storage, 1)
    for which in (CheckpointId(1, 2), CheckpointId(1, 3), CheckpointId(2, 4)):
        storage.create(which)
        write(storage, which, FILE, b"half")
    write(storage, CheckpointId(1, 3), "notes.txt", b"a person's")
    assert remove_unfinished(storage, term=1) == []  # term 2 is another's, and newer
    assert remove_unfinished(storage, term=2) == [CheckpointId(1, 2)]
    left = [one.which for one in list_checkpoints(storage)]
    assert left == [CheckpointId(2, 4), CheckpointId(1, 3), CheckpointId(1, 1)]


def test_space_is_made_of_starts_that_never_saved_but_for_the_last_one(storage: Storage) -> None:
    put(storage, 1, term=1)
    for term in (2, 3, 4):
        storage.create(CheckpointId(term, 2))
        write(storage, CheckpointId(term, 2), FILE, b"half")
    gone = free_space(storage, term=5)
    assert gone == [CheckpointId(3, 2), CheckpointId(2, 2)]
    left = [one.which for one in list_checkpoints(storage)]
    assert left == [CheckpointId(4, 2), CheckpointId(1, 1)]


# Which checkpoints are kept: what users may write, what is decided, and what is then deleted


HOUR = 3600.0


def saved(step: int, term: int = 1, hours: float = 0.0) -> Manifest:
    return Manifest(step=step, term=term, world=1, saved_at=1e9 + hours * HOUR)


def kept(rule: Retention, manifests: list[Manifest]) -> list[tuple[int, int]]:
    """(term, step) of all that stay, the oldest first."""
    stay = [verdict.which for verdict in apply_retention(rule, manifests) if verdict.keep]
    return [(which.term, which.step) for which in sorted(stay)]


@pytest.mark.parametrize(
    ("keep", "every", "rule"),
    [
        (None, None, Retention()),
        (3, None, Retention(3)),
        (1, 1000, Retention(1, steps=1000)),
        (2, timedelta(days=1), Retention(2, seconds=24 * HOUR)),
        (2, "6h,1000 steps", Retention(2, 1000, 6 * HOUR)),
    ],
)
def test_what_users_may_write(keep: int | None, every: Any, rule: Retention) -> None:
    assert parse_retention(keep, every) == rule


@pytest.mark.parametrize(
    ("keep", "every", "why"),
    [
        (0, None, "keep=.*at least 1"),
        (-1, None, "keep=.*at least 1"),
        (True, None, "keep=.*is a bool: give a whole number"),
        ("3", None, "keep=.*is a str: give a whole number"),
        *((1, every, "keep_every=.*'1000 steps'") for every in (0, "often", "", "1h,2h", ",")),
        (None, "6h", "keep=1"),
    ],
)
def test_a_rule_that_is_none_is_refused(keep: Any, every: Any, why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        parse_retention(keep, every)


def test_the_newest_are_those_of_the_highest_terms() -> None:
    found = [saved(30), saved(40), saved(20, term=2), saved(25, term=2)]
    assert kept(Retention(1), found) == [(2, 25)]
    assert kept(Retention(3), found) == [(1, 40), (2, 20), (2, 25)]
    assert len(kept(Retention(), found)) == 4


def test_every_so_many_steps_the_first_stays() -> None:
    found = [saved(step) for step in range(40, 400, 40)]
    assert kept(Retention(1, steps=100), found) == [(1, 120), (1, 200), (1, 320), (1, 360)]


def test_of_two_at_the_same_step_the_one_of_the_newer_term_stays() -> None:
    found = [saved(100), saved(200), saved(100, term=2), saved(150, term=2)]
    assert kept(Retention(1, steps=100), found) == [(1, 200), (2, 100), (2, 150)]


def test_one_stays_for_every_span_of_time() -> None:
    found = [saved(step, hours=step / 10) for step in range(0, 100, 5)]
    assert [step for _, step in kept(Retention(1, seconds=3 * HOUR), found)] == [0, 30, 60, 90, 95]


def test_a_clock_that_was_set_back_costs_no_checkpoint_but_the_ones_between() -> None:
    found = [saved(1, hours=10), saved(2, hours=11), saved(3, hours=0), saved(4, hours=1)]
    assert [step for _, step in kept(Retention(1, seconds=3 * HOUR), found)] == [1, 3, 4]


_RULES = st.builds(
    Retention,
    st.integers(1, 4),
    st.sampled_from([0, 1, 7, 100]),
    st.sampled_from([0.0, 1.0, HOUR, 6 * HOUR]),
)
_HISTORY = st.lists(
    st.builds(saved, st.integers(0, 300), st.integers(1, 3), st.floats(0, 50)),
    unique_by=lambda manifest: manifest.id,
)


@given(_RULES, _HISTORY)
def test_what_was_left_stays_when_it_is_looked_at_again(
    rule: Retention, history: list[Manifest]
) -> None:
    first = kept(rule, history)
    left = [manifest for manifest in history if (manifest.term, manifest.step) in first]
    assert kept(rule, left) == first
    newest = sorted(history, key=lambda manifest: manifest.id)[-(rule.last or 0) :]
    assert {(manifest.term, manifest.step) for manifest in newest} <= set(first)


def test_pruning_deletes_what_is_not_kept(storage: Storage) -> None:
    term = storage.take_term(HOLDER)
    for step in (10, 20, 30, 40):
        put(storage, step, term)
    prune(storage, Retention(2, steps=20), term)
    left = [f"step-{step}.term-1" for step in (20, 30, 40)]
    assert sorted(storage.names()) == [*left, "term-1"]


def test_only_whole_ones_count_and_only_they_are_deleted(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for step in (10, 20, 30, 40, 50):
        put(storage, step)
    (tmp_path / "step-40.term-1" / FILE).write_bytes(b"short")
    storage.create(CheckpointId(term=1, step=60))
    (tmp_path / "step-10.term-1" / "mine.txt").write_text("a person's")
    (tmp_path / "mine").mkdir()
    prune(storage, Retention(2), term=1)
    assert entries_of(tmp_path) == [
        "mine",
        "step-10.term-1",  # somebody's file is in it
        "step-30.term-1",
        "step-40.term-1",  # damaged: does not count and is not deleted
        "step-50.term-1",
        "step-60.term-1",  # never finished
    ]
    assert (tmp_path / "step-10.term-1" / FILE).exists()


def test_who_holds_an_older_term_deletes_nothing(storage: Storage) -> None:
    older = storage.take_term(HOLDER)
    put(storage, 10, older)
    put(storage, 20, older)
    storage.take_term({"run": "r2", "round": 5, "host": "there"})
    before = sorted(storage.names())
    with pytest.raises(CheckpointError, match="run r2"):
        prune(storage, Retention(1), older)
    assert sorted(storage.names()) == before
