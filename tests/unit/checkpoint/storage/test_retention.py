"""Which checkpoints are kept: what users may write, what is decided, and what is then deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
from elastic_runtime.checkpoint.storage.catalog import abandoned, list_checkpoints, prune
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.retention import Retention, apply_retention, parse_retention
from elastic_runtime.errors import CheckpointError
from tests.ranks import entries_of
from tests.small_checkpoints import FILE, HOLDER, put

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.checkpoint.storage.storage_contract import Storage

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
        (2, "1000 steps", Retention(2, steps=1000)),
        (2, "6h", Retention(2, seconds=6 * HOUR)),
        (2, timedelta(days=1), Retention(2, seconds=24 * HOUR)),
        (2, "1000 steps, 6h", Retention(2, 1000, 6 * HOUR)),
        (2, "6h,1000", Retention(2, 1000, 6 * HOUR)),
    ],
)
def test_what_users_may_write(keep: int | None, every: Any, rule: Retention) -> None:
    assert parse_retention(keep, every) == rule


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (0, "at least 1"),
        (-1, "at least 1"),
        (True, "is a bool: give a whole number"),
        ("3", "is a str: give a whole number"),
        (2.0, "is a float: give a whole number"),
    ],
)
def test_a_keep_that_keeps_nothing_is_refused(keep: Any, why: str) -> None:
    with pytest.raises(CheckpointError, match=f"keep=.*{why}"):
        parse_retention(keep, None)


@pytest.mark.parametrize(
    "every", [0, "0 steps", "often", "", "1000 steps, 500 steps", "1h,2h", ","]
)
def test_a_keep_every_that_is_not_understood_is_refused(every: Any) -> None:
    with pytest.raises(CheckpointError, match=r"keep_every=.*'1000 steps'"):
        parse_retention(1, every)


def test_keep_every_needs_keep() -> None:
    with pytest.raises(CheckpointError, match="keep=1"):
        parse_retention(None, "6h")


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
    assert sorted(storage.names()) == [
        "step-20.term-1",
        "step-30.term-1",
        "step-40.term-1",
        "term-1",
    ]


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


def test_what_was_found_damaged_does_not_count(storage: Storage) -> None:
    for step in (10, 20, 30):
        put(storage, step)
    prune(storage, Retention(1), term=1, damaged={CheckpointId(1, 30)})
    assert sorted(storage.names()) == ["step-20.term-1", "step-30.term-1"]


def test_who_holds_an_older_term_deletes_nothing(storage: Storage) -> None:
    older = storage.take_term(HOLDER)
    put(storage, 10, older)
    put(storage, 20, older)
    storage.take_term({"run": "r2", "round": 5, "host": "there"})
    before = sorted(storage.names())
    with pytest.raises(CheckpointError, match="run r2"):
        prune(storage, Retention(1), older)
    assert sorted(storage.names()) == before


def test_a_save_is_abandoned_when_a_newer_term_is_there(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    put(storage, 5)
    for term, step in ((1, 10), (1, 20), (2, 10)):
        storage.create(CheckpointId(term, step))
    (tmp_path / "step-10.term-1" / FILE).write_bytes(b"half")
    (tmp_path / "step-20.term-1" / "mine.txt").write_text("a person's")
    assert abandoned(list_checkpoints(storage), storage.names()) == [CheckpointId(1, 10)]
