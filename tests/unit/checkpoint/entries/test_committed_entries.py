"""Entries that move on with each step are moved on once, by one checkpointer only."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from elastic_runtime.checkpoint.entries.committed_entries import CommittedEntries
from elastic_runtime.errors import UsageError


class Cursor:
    """Moves on with each step, as a sampler does."""

    def __init__(self) -> None:
        self.at = 0

    def commit(self) -> None:
        self.at += 1


def test_what_has_that_name_and_is_no_method_is_left_alone() -> None:
    """A layer, and the revision of somebody's code."""
    layered, named = torch.nn.Module(), SimpleNamespace(commit="1f0e2a")
    layered.commit, cursor = torch.nn.Linear(1, 1), Cursor()
    CommittedEntries({"model": layered, "config": named, "cursor": cursor}).commit()
    assert cursor.at == 1


def test_only_entries_with_a_commit_move_on() -> None:
    first, second = Cursor(), Cursor()
    entries = CommittedEntries({"first": first, "best": 0.5, "second": second})
    entries.commit()
    entries.commit()
    assert (first.at, second.at) == (2, 2)


def test_two_checkpointers_that_both_move_an_entry_on_are_refused() -> None:
    shared = Cursor()
    one, other = CommittedEntries({"sampler": shared}), CommittedEntries({"data": shared})
    one.commit()
    other.commit()
    with pytest.raises(UsageError, match=r"the entry 'sampler' belongs to two checkpointers.*one"):
        one.commit()
    assert shared.at == 2, "the step that was refused moves nothing"


def test_an_entry_may_go_from_one_checkpointer_to_the_next() -> None:
    shared = Cursor()
    CommittedEntries({"sampler": shared}).commit()
    later = CommittedEntries({"sampler": shared})
    later.commit()
    later.commit()
    assert shared.at == 3
