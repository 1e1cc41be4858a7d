"""How checkpoints are shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from elastic_runtime.checkpoint.format.manifest import CheckpointId, FileRecord, Manifest
from elastic_runtime.checkpoint.storage.catalog import CatalogEntry, CheckpointStatus
from elastic_runtime.checkpoint.storage.retention import RetentionDecision
from elastic_runtime.cli.ctl import checkpoint_screen
from elastic_runtime.cli.ctl.checkpoint_report import take

if TYPE_CHECKING:
    from rich.console import RenderableType

NEWEST, OLDER = CheckpointId(1, 20), CheckpointId(1, 10)
MANIFEST = Manifest(10, 1, 4, entries=("model",), files=(FileRecord("rank-0.distcp", 2048, 255),))
WHOLE = CatalogEntry(OLDER, CheckpointStatus.WHOLE, MANIFEST)
DAMAGED = CatalogEntry(NEWEST, CheckpointStatus.DAMAGED, problem="rank-0.distcp is [b]missing")


def text(shown: RenderableType) -> str:
    console = Console(width=200, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_a_list_says_what_a_job_would_take_and_what_is_wrong() -> None:
    names = [NEWEST.name, OLDER.name, "notes"]
    shown = text(
        checkpoint_screen.listing(take("/runs", names, [DAMAGED, WHOLE], frozenset({OLDER})))
    )
    rows = [line.split() for line in shown.splitlines()[1:3]]
    assert rows[0][:2] == ["20", "1"] and rows[0][-1] == "damaged"
    assert rows[1][:2] == ["10", "1"] and rows[1][-4:] == ["whole,", "every", "byte", "read"]
    assert "resume() would take step 10 of term 1" in shown
    assert "rank-0.distcp is [b]missing" in shown, "a name is no markup"
    assert "not of a checkpointer, left alone: notes" in shown


def test_where_nothing_can_be_taken_it_is_said_why() -> None:
    shown = text(checkpoint_screen.listing(take("/runs", [], [])))
    assert shown.strip() == "/runs: resume() would start from the beginning: there is no checkpoint"


def test_one_checkpoint_is_shown_with_its_files() -> None:
    shown = text(checkpoint_screen.one(WHOLE))
    assert "by 4 ranks" in shown and "entries  model" in shown
    assert "rank-0.distcp" in shown and "000000ff" in shown
    assert "is [b]missing" in text(checkpoint_screen.one(DAMAGED))


def test_a_dry_run_deletes_nothing_in_its_words() -> None:
    found = [RetentionDecision(OLDER, False, "old"), RetentionDecision(NEWEST, True, "new")]
    for dry_run, word in ((True, "would be deleted"), (False, "deleted")):
        shown = text(checkpoint_screen.decisions(found, dry_run=dry_run))
        assert ("would" in shown) == dry_run
        assert word in shown and "kept" in shown
