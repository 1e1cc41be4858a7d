"""What follows from the checkpoints that were found: what a job would resume, and why."""

from __future__ import annotations

import pytest

from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.storage.catalog import CatalogEntry, CheckpointStatus
from elastic_runtime.checkpoint.storage.retention import RetentionDecision
from elastic_runtime.cli.ctl.checkpoint_report import Inventory, decision, names_of, take

WHOLE, DAMAGED, NEWER = CheckpointStatus.WHOLE, CheckpointStatus.DAMAGED, CheckpointStatus.NEWER


def found(*statuses: CheckpointStatus, names: tuple[str, ...] = ()) -> Inventory:
    """An inventory; the newest one comes first."""
    entries = [
        CatalogEntry(CheckpointId(1, len(statuses) - place), status)
        for place, status in enumerate(statuses)
    ]
    listed = [*(entry.which.name for entry in entries), *names]
    return take("/runs", listed, entries, frozenset({CheckpointId(1, 1)}))


@pytest.mark.parametrize(
    ("statuses", "takes", "why"),
    [
        ((WHOLE,), 1, "it is the newest whole one (its bytes were read)"),
        ((WHOLE, WHOLE), 2, "it is the newest whole one (its bytes were not read)"),
        ((DAMAGED, WHOLE), 1, "1 newer is damaged"),
        ((DAMAGED, DAMAGED, WHOLE), 1, "2 newer are damaged"),
        ((WHOLE, DAMAGED), 2, "(its bytes were not read)"),
        ((NEWER, WHOLE), None, "step-2.term-1 is of a newer version"),
        ((DAMAGED,), None, "there are checkpoints, but none is whole"),
        ((CheckpointStatus.UNFINISHED,), None, "would start from the beginning"),
        ((), None, "would start from the beginning"),
    ],
)
def test_what_a_job_would_resume(
    statuses: tuple[CheckpointStatus, ...], takes: int | None, why: str
) -> None:
    inventory = found(*statuses)
    assert (inventory.takes.step if inventory.takes else None) == takes
    assert why in inventory.why
    assert ("damaged" in inventory.why) == ("damaged" in why)


def test_what_is_none_of_ours_is_named() -> None:
    inventory = found(WHOLE, names=("notes", "term-3"))
    assert (inventory.foreign, inventory.term) == (("notes",), 3)
    plain = inventory.as_dict()
    assert plain["resume"] == {"step": 1, "term": 1}
    assert plain["checkpoints"][0]["verified"]


def test_a_dry_run_says_that_nothing_was_deleted() -> None:
    one = RetentionDecision(CheckpointId(1, 1), False, "old")
    assert [decision(one, dry_run=dry)["deleted"] for dry in (False, True)] == [True, False]


def test_of_many_names_some_are_listed() -> None:
    assert names_of("ba") == "a, b"
    assert names_of("gfedcba") == "a, b, c, d, e and 2 more"
