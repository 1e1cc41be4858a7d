"""``elasticctl checkpoint`` on directories: what it shows, what it deletes, how it ends."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.checkpoint.format.manifest import (
    MANIFEST,
    OUTLINE,
    CheckpointId,
    FileRecord,
    Manifest,
)
from elastic_runtime.checkpoint.storage.catalog import CatalogEntry, CheckpointStatus
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.storage_contract import PROBE_FILE
from elastic_runtime.cli.ctl import checkpoint_screen
from elastic_runtime.cli.ctl.checkpoint_report import Inventory, names_of, take
from elastic_runtime.cli.ctl.elasticctl import main
from tests.checkpoints import write
from tests.hostile import make_newer
from tests.ranks import entries_of
from tests.small_checkpoints import FILE, HOLDER, put
from tests.unit.cli.stand_ins import on_screen
from tests.unit.programs import python

if TYPE_CHECKING:
    from pathlib import Path


Capture = pytest.CaptureFixture[str]


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """Three checkpoints of two terms, and a save that did not finish."""
    found = LocalStorage(tmp_path)
    found.take_term(HOLDER)
    put(found, 10, term=1)
    put(found, 20, term=1)
    found.create(CheckpointId(1, 30))
    found.take_term(HOLDER)
    put(found, 15, term=2)
    return found


class Ctl:
    """``elasticctl checkpoint`` on one directory."""

    def __init__(self, storage: LocalStorage, capsys: Capture) -> None:
        self.storage, self.path, self._capsys = storage, storage.path, capsys

    def __call__(self, command: str, *options: object) -> int:
        return main(["checkpoint", command, str(self.path), *map(str, options)])

    def report(self, command: str, *options: object) -> Any:
        self.shown()
        self(command, *options, "--format", "json")
        return json.loads(self.shown())

    def shown(self) -> str:
        """What was printed since it was last looked at."""
        return self._capsys.readouterr().out


@pytest.fixture
def ctl(storage: LocalStorage, capsys: Capture) -> Ctl:
    return Ctl(storage, capsys)


def damage(storage: LocalStorage, which: str) -> Path:
    """Flips a bit; the size stays."""
    path = storage.path / which / FILE
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


def test_list_says_what_there_is_and_what_resume_would_take(ctl: Ctl) -> None:
    (ctl.path / "mine").mkdir()
    (ctl.path / PROBE_FILE).touch()  # a process was killed while it looked
    found = ctl.report("list")
    assert found["resume"] == {"step": 15, "term": 2} and "newest whole one" in found["why"]
    assert found["term"] == 2 and found["foreign"] == ["mine"]
    assert [(one["name"], one["condition"]) for one in found["checkpoints"]] == [
        ("step-15.term-2", "whole"),
        ("step-30.term-1", "unfinished"),
        ("step-20.term-1", "whole"),
        ("step-10.term-1", "whole"),
    ]
    newest = found["checkpoints"][0]
    assert (newest["world"], newest["bytes"], newest["verified"]) == (1, 11, False)
    assert ctl("list") == 0
    shown = ctl.shown()
    assert re.search(r"15 +2 +0 +1 +11 bytes +\S+ \S+ +whole", shown)
    assert "a job would take step 15 of term 2: it is the newest whole one" in shown


def test_what_is_set_aside_is_shown_restored_and_deleted(ctl: Ctl) -> None:
    why = "the job continued from step-10.term-1 in term 2"
    ctl.storage.set_aside(CheckpointId(1, 20), {"why": why})
    found = ctl.report("list")
    assert found["resume"] == {"step": 15, "term": 2} and found["foreign"] == []
    aside = [one for one in found["checkpoints"] if one["condition"] == "set aside"]
    assert [one["problem"] for one in aside] == [why]
    assert ctl("list") == 0
    assert "set aside" in ctl.shown()
    # It counts for no rule, and only those who say so delete it.
    assert ctl("prune", "--keep", 1) == 0
    assert {"step-20.term-1", "step-15.term-2"} <= set(ctl.storage.names())
    found = ctl.report("restore", "--step", 20)
    assert found["resume"] == {"step": 20, "term": 1}
    states = {one["name"]: one["condition"] for one in found["checkpoints"]}
    assert states["step-15.term-2"] == "set aside" and states["step-20.term-1"] == "whole"
    assert ctl("prune", "--keep", 1, "--set-aside") == 0
    assert not [name for name in ctl.storage.names() if "15" in name]
    assert "step-20.term-1" in ctl.storage.names()
    assert ctl("restore", "--step", 30) == 2


def test_verify_reads_all_and_names_what_is_damaged(ctl: Ctl) -> None:
    assert ctl("verify") == 0
    assert ctl.shown().count("whole, every byte read") == 3
    path = damage(ctl.storage, "step-15.term-2")
    assert ctl("verify") == 1
    shown = ctl.shown()
    assert f"{path} is damaged: bytes 6 to 11 are not what was written" in shown
    assert "would take step 20 of term 1" in shown and "1 newer is damaged" in shown
    assert ctl("verify", "--step", 20) == 0
    found = ctl.report("verify", "--step", 20)
    assert [one["verified"] for one in found["checkpoints"]] == [False, False, True, False]


def test_a_lost_file_and_a_broken_manifest_are_seen_without_reading(ctl: Ctl) -> None:
    (ctl.path / "step-15.term-2" / FILE).unlink()
    (ctl.path / "step-20.term-1" / MANIFEST).write_text("{")
    (ctl.path / "step-10.term-1" / FILE).write_bytes(b"short")
    found = ctl.report("list")
    problems = [one["problem"] for one in found["checkpoints"]]
    assert [one["condition"] for one in found["checkpoints"]].count("damaged") == 3
    assert "is missing" in problems[0] and "not a manifest" in problems[2]
    assert "has 5 bytes instead of 11" in problems[3]
    assert found["resume"] is None and "would stop with an error" in found["why"]


def test_one_of_a_newer_version_is_not_passed_over(ctl: Ctl) -> None:
    put(ctl.storage, 25, term=2)
    make_newer(ctl.path / "step-25.term-2")
    path = ctl.path / "step-25.term-2" / MANIFEST
    found = ctl.report("list")
    assert found["checkpoints"][0]["condition"] == "of a newer version"
    assert found["resume"] is None and "step-25.term-2 is of a newer version" in found["why"]
    assert ctl("verify") == 1
    assert f"{path} has format 3" in ctl.shown()
    assert ctl("prune", "--keep", 1) == 0
    assert {"step-25.term-2", "step-15.term-2"} <= set(entries_of(ctl.path))


def test_nothing_to_resume_is_no_error(tmp_path: Path, capsys: Capture) -> None:
    storage = LocalStorage(tmp_path)
    storage.take_term(HOLDER)
    storage.create(CheckpointId(1, 30))
    found = Ctl(storage, capsys).report("list")
    assert found["resume"] is None and "would start from the beginning" in found["why"]


def test_show_tells_what_a_checkpoint_consists_of(ctl: Ctl, capsys: Capture) -> None:
    found = ctl.report("show")
    assert found["name"] == "step-15.term-2" and found["entries"] == ["model"]
    assert [file["name"] for file in found["files"]] == [FILE]
    assert len(found["files"][0]["parts"]) == 2
    assert ctl.report("show", "--step", 30)["condition"] == "unfinished"
    assert ctl("show", "--step", 20, "--term", 1) == 0
    assert "step-20.term-1 · whole" in ctl.shown()
    assert ctl("show", "--step", 20, "--term", 2) == 2
    assert "no checkpoint of step 20 term 2" in capsys.readouterr().err


def test_what_has_too_many_items_to_list_them_is_shown_and_verified(
    tmp_path: Path, capsys: Capture
) -> None:
    ctl = Ctl(LocalStorage(tmp_path), capsys)
    path = tmp_path / write(ctl.storage, [{"a": 1, "b": 2, "c": 3}], many=0).name
    file = next(one for one in ctl.report("show")["files"] if one["unlisted"])
    assert (file["name"], file["parts"], file["unlisted"]) == (FILE, [], 3)
    assert ctl("show") == 0
    assert re.search(rf"{re.escape(FILE)} .* 3 ", ctl.shown())
    assert ctl("verify") == 0
    content = (path / OUTLINE).read_bytes()
    (path / OUTLINE).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert ctl("verify") == 1
    assert ".outline is damaged" in ctl.shown().replace("\n", "")


def test_a_dry_run_deletes_nothing(ctl: Ctl) -> None:
    before = entries_of(ctl.path)
    options = "--keep", 1, "--unfinished", "--dry-run"
    found = ctl.report("prune", *options)
    goes = {"step-10.term-1", "step-20.term-1", "step-30.term-1"}
    assert {one["name"] for one in found if not one["keep"]} == goes
    assert not any(one["deleted"] for one in found)
    ctl("prune", *options)
    assert ctl.shown().count("would be deleted") == 3
    assert entries_of(ctl.path) == before


def test_prune_deletes_what_need_not_be_kept(ctl: Ctl) -> None:
    (ctl.path / "mine").mkdir()
    assert ctl("prune", "--keep", 1, "--keep-every", "20 steps") == 0
    kept = ["mine", "step-15.term-2", "step-20.term-1", "step-30.term-1", "term-2"]
    assert entries_of(ctl.path) == kept
    shown = ctl.shown()
    assert "the first from step 20 on" in shown
    assert "deleted" in shown and "would" not in shown and "kept" in shown
    pruned = ctl.report("prune", "--keep", 1, "--unfinished")
    assert [one["deleted"] for one in pruned] == [not one["keep"] for one in pruned]
    assert entries_of(ctl.path) == ["mine", "step-15.term-2", "term-2"]


def test_prune_does_not_count_on_what_is_damaged(ctl: Ctl) -> None:
    damage(ctl.storage, "step-15.term-2")
    damage(ctl.storage, "step-20.term-1")
    assert ctl("prune", "--keep", 1) == 0
    assert "damaged: does not count" in ctl.shown()
    assert {"step-10.term-1", "step-15.term-2", "step-20.term-1"} <= set(entries_of(ctl.path))


@pytest.mark.parametrize("command", ["list", "show", "verify", "prune"])
def test_what_is_no_directory_of_checkpoints_is_said(
    storage: LocalStorage, tmp_path: Path, capsys: Capture, command: str
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    options = ["--keep", "1"] if command == "prune" else []
    for place, text in (
        (tmp_path / "none", "there is no directory"),
        (file, "Not a directory"),
        (storage.path / "step-15.term-2", "is one checkpoint; give the directory"),
        ("x3://bucket/run", "Protocol not known"),
    ):
        assert main(["checkpoint", command, str(place), *options]) == 2
        told = capsys.readouterr()
        assert text in told.err and str(place) in told.err and not told.out
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--keep", 0], "keep=0 would keep nothing"),
        (["--keep", 1, "--keep-every", "often"], "keep_every='often' is not understood"),
        ([], "Missing option '--keep'"),
    ],
)
def test_options_that_make_no_sense_delete_nothing(
    ctl: Ctl, capsys: Capture, options: list[object], text: str
) -> None:
    before = entries_of(ctl.path)
    assert ctl("prune", *options) == 2
    assert text in capsys.readouterr().err
    assert entries_of(ctl.path) == before


_WITHOUT_TORCH = """
import sys
from elastic_runtime.cli.ctl.elasticctl import main
code = main(["checkpoint", "verify", sys.argv[1]])
assert "torch" not in sys.modules
sys.exit(code)
"""


def test_it_needs_no_torch(storage: LocalStorage) -> None:
    assert python("-c", _WITHOUT_TORCH, storage.path).returncode == 0


WHOLE, DAMAGED, NEWER = CheckpointStatus.WHOLE, CheckpointStatus.DAMAGED, CheckpointStatus.NEWER


def found(*statuses: CheckpointStatus) -> Inventory:
    """An inventory; the newest one comes first."""
    entries = [
        CatalogEntry(CheckpointId(1, len(statuses) - place), status)
        for place, status in enumerate(statuses)
    ]
    names = [entry.which.name for entry in entries]
    return take("/runs", names, entries, frozenset({CheckpointId(1, 1)}))


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


def test_of_many_names_some_are_listed() -> None:
    assert names_of("ba") == "a, b"
    assert names_of("gfedcba") == "a, b, c, d, e and 2 more"


NEWEST, OLDER = CheckpointId(1, 20), CheckpointId(1, 10)
RECORD = Manifest(10, 1, 4, entries=("model",), files=(FileRecord("rank-0.distcp", 2048, 255),))
WHOLE_ONE = CatalogEntry(OLDER, CheckpointStatus.WHOLE, RECORD)
DAMAGED_ONE = CatalogEntry(NEWEST, CheckpointStatus.DAMAGED, problem="rank-0.distcp is [b]missing")


def test_a_list_says_what_a_job_would_take_and_what_is_wrong() -> None:
    names = [NEWEST.name, OLDER.name, "notes"]
    shown = on_screen(
        checkpoint_screen.listing(
            take("/runs", names, [DAMAGED_ONE, WHOLE_ONE], frozenset({OLDER}))
        )
    )
    rows = [line.split() for line in shown.splitlines()[1:3]]
    assert rows[0][:2] == ["20", "1"] and rows[0][-1] == "damaged"
    assert rows[1][:2] == ["10", "1"] and rows[1][-4:] == ["whole,", "every", "byte", "read"]
    assert "a job would take step 10 of term 1" in shown
    assert "rank-0.distcp is [b]missing" in shown, "a name is no markup"
    assert "no checkpoints, left alone: notes" in shown


def test_where_nothing_can_be_taken_it_is_said_why() -> None:
    shown = on_screen(checkpoint_screen.listing(take("/runs", [], [])))
    assert shown.strip() == "/runs: a job would start from the beginning: there is no checkpoint"


def test_one_checkpoint_is_shown_with_its_files() -> None:
    shown = on_screen(checkpoint_screen.one(WHOLE_ONE))
    assert "by 4 ranks" in shown and "entries  model" in shown
    assert "rank-0.distcp" in shown and "000000ff" in shown
    assert "is [b]missing" in on_screen(checkpoint_screen.one(DAMAGED_ONE))
