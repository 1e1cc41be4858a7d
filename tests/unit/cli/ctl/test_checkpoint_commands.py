"""``elasticctl checkpoint`` on directories: what it shows, what it deletes, how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.checkpoint.format.manifest import MANIFEST, OUTLINE, CheckpointId
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.storage_contract import PROBE_FILE
from elastic_runtime.cli.ctl.elasticctl import main
from tests.checkpoints import write
from tests.hostile import make_newer
from tests.processes import PROGRAM_TIMEOUT
from tests.ranks import entries_of
from tests.small_checkpoints import FILE, HOLDER, put

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


def ctl(*arguments: object) -> int:
    return main(["checkpoint", *map(str, arguments)])


def report(capsys: Capture, *arguments: object) -> Any:
    capsys.readouterr()
    ctl(*arguments, "--format", "json")
    return json.loads(capsys.readouterr().out)


def damage(storage: LocalStorage, which: str) -> Path:
    """Flips a bit; the size stays."""
    path = storage.path / which / FILE
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


def test_list_says_what_there_is_and_what_resume_would_take(
    storage: LocalStorage, capsys: Capture
) -> None:
    (storage.path / "mine").mkdir()
    (storage.path / PROBE_FILE).touch()  # a process was killed while it looked
    found = report(capsys, "list", storage.path)
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
    assert ctl("list", storage.path) == 0
    shown = capsys.readouterr().out
    assert re.search(r"15 +2 +0 +1 +11 bytes +\S+ \S+ +whole", shown)
    assert "resume() would take step 15 of term 2: it is the newest whole one" in shown


def test_what_is_set_aside_is_shown_restored_and_deleted(
    storage: LocalStorage, capsys: Capture
) -> None:
    storage.set_aside(
        CheckpointId(1, 20), {"why": "the job continued from step-10.term-1 in term 2"}
    )
    found = report(capsys, "list", storage.path)
    assert found["resume"] == {"step": 15, "term": 2} and found["foreign"] == []
    assert [one["problem"] for one in found["checkpoints"] if one["condition"] == "set aside"] == [
        "the job continued from step-10.term-1 in term 2"
    ]
    assert ctl("list", storage.path) == 0
    assert "set aside" in capsys.readouterr().out
    # It counts for no rule, and only those who say so delete it.
    assert ctl("prune", storage.path, "--keep", 1) == 0
    assert {"step-20.term-1", "step-15.term-2"} <= set(storage.names())
    found = report(capsys, "restore", storage.path, "--step", 20)
    assert found["resume"] == {"step": 20, "term": 1}
    states = {one["name"]: one["condition"] for one in found["checkpoints"]}
    assert states["step-15.term-2"] == "set aside" and states["step-20.term-1"] == "whole"
    assert ctl("prune", storage.path, "--keep", 1, "--set-aside") == 0
    assert not [name for name in storage.names() if "15" in name]
    assert "step-20.term-1" in storage.names()
    assert ctl("restore", storage.path, "--step", 30) == 2


def test_verify_reads_all_and_names_what_is_damaged(storage: LocalStorage, capsys: Capture) -> None:
    assert ctl("verify", storage.path) == 0
    assert capsys.readouterr().out.count("whole, every byte read") == 3
    path = damage(storage, "step-15.term-2")
    assert ctl("verify", storage.path) == 1
    shown = capsys.readouterr().out
    assert f"{path} is damaged: bytes 6 to 11 are not what was written" in shown
    assert "would take step 20 of term 1" in shown and "1 newer is damaged" in shown
    assert ctl("verify", storage.path, "--step", 20) == 0
    found = report(capsys, "verify", storage.path, "--step", 20)
    assert [one["verified"] for one in found["checkpoints"]] == [False, False, True, False]


def test_a_lost_file_and_a_broken_manifest_are_seen_without_reading(
    storage: LocalStorage, capsys: Capture
) -> None:
    (storage.path / "step-15.term-2" / FILE).unlink()
    (storage.path / "step-20.term-1" / MANIFEST).write_text("{")
    (storage.path / "step-10.term-1" / FILE).write_bytes(b"short")
    found = report(capsys, "list", storage.path)
    problems = [one["problem"] for one in found["checkpoints"]]
    assert [one["condition"] for one in found["checkpoints"]].count("damaged") == 3
    assert "is missing" in problems[0] and "not a manifest" in problems[2]
    assert "has 5 bytes instead of 11" in problems[3]
    assert found["resume"] is None and "would stop with an error" in found["why"]


def test_one_of_a_newer_version_is_not_passed_over(storage: LocalStorage, capsys: Capture) -> None:
    put(storage, 25, term=2)
    make_newer(storage.path / "step-25.term-2")
    path = storage.path / "step-25.term-2" / MANIFEST
    found = report(capsys, "list", storage.path)
    assert found["checkpoints"][0]["condition"] == "of a newer version"
    assert found["resume"] is None and "step-25.term-2 is of a newer version" in found["why"]
    assert ctl("verify", storage.path) == 1
    assert f"{path} has format 3" in capsys.readouterr().out
    assert ctl("prune", storage.path, "--keep", 1) == 0
    assert {"step-25.term-2", "step-15.term-2"} <= set(entries_of(storage.path))


def test_nothing_to_resume_is_no_error(tmp_path: Path, capsys: Capture) -> None:
    storage = LocalStorage(tmp_path)
    storage.take_term(HOLDER)
    storage.create(CheckpointId(1, 30))
    found = report(capsys, "list", tmp_path)
    assert found["resume"] is None and "would start from the beginning" in found["why"]


def test_show_tells_what_a_checkpoint_consists_of(storage: LocalStorage, capsys: Capture) -> None:
    found = report(capsys, "show", storage.path)
    assert found["name"] == "step-15.term-2" and found["entries"] == ["model"]
    assert [file["name"] for file in found["files"]] == [FILE]
    assert len(found["files"][0]["parts"]) == 2
    assert report(capsys, "show", storage.path, "--step", 30)["condition"] == "unfinished"
    assert ctl("show", storage.path, "--step", 20, "--term", 1) == 0
    assert "step-20.term-1 · whole" in capsys.readouterr().out
    assert ctl("show", storage.path, "--step", 20, "--term", 2) == 2
    assert "no checkpoint of step 20 term 2" in capsys.readouterr().err


def test_what_has_too_many_items_to_list_them_is_shown_and_verified(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / write(LocalStorage(tmp_path), [{"a": 1, "b": 2, "c": 3}], many=0).name
    file = next(one for one in report(capsys, "show", tmp_path)["files"] if one["unlisted"])
    assert (file["name"], file["parts"], file["unlisted"]) == (FILE, [], 3)
    assert ctl("show", tmp_path) == 0
    assert re.search(rf"{re.escape(FILE)} .* 3 ", capsys.readouterr().out)
    assert ctl("verify", tmp_path) == 0
    content = (path / OUTLINE).read_bytes()
    (path / OUTLINE).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert ctl("verify", tmp_path) == 1
    assert ".outline is damaged" in capsys.readouterr().out.replace("\n", "")


def test_a_dry_run_deletes_nothing(storage: LocalStorage, capsys: Capture) -> None:
    before = entries_of(storage.path)
    options = "--keep", 1, "--unfinished", "--dry-run"
    found = report(capsys, "prune", storage.path, *options)
    assert {one["name"] for one in found if not one["keep"]} == {
        "step-10.term-1",
        "step-20.term-1",
        "step-30.term-1",
    }
    assert not any(one["deleted"] for one in found)
    ctl("prune", storage.path, *options)
    assert capsys.readouterr().out.count("would be deleted") == 3
    assert entries_of(storage.path) == before


def test_prune_deletes_what_need_not_be_kept(storage: LocalStorage, capsys: Capture) -> None:
    (storage.path / "mine").mkdir()
    assert ctl("prune", storage.path, "--keep", 1, "--keep-every", "20 steps") == 0
    kept = ["mine", "step-15.term-2", "step-20.term-1", "step-30.term-1", "term-2"]
    assert entries_of(storage.path) == kept
    assert "the first from step 20 on" in capsys.readouterr().out
    assert ctl("prune", storage.path, "--keep", 1, "--unfinished") == 0
    assert entries_of(storage.path) == ["mine", "step-15.term-2", "term-2"]


def test_prune_does_not_count_on_what_is_damaged(storage: LocalStorage, capsys: Capture) -> None:
    damage(storage, "step-15.term-2")
    damage(storage, "step-20.term-1")
    assert ctl("prune", storage.path, "--keep", 1) == 0
    assert "damaged: does not count" in capsys.readouterr().out
    assert {"step-10.term-1", "step-15.term-2", "step-20.term-1"} <= set(entries_of(storage.path))


@pytest.mark.parametrize("command", ["list", "show", "verify", "prune"])
def test_what_is_no_directory_of_checkpoints_is_said(
    storage: LocalStorage, tmp_path: Path, capsys: Capture, command: str
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    options = ["--keep", 1] if command == "prune" else []
    for place, text in (
        (tmp_path / "none", "there is no directory"),
        (file, "Not a directory"),
        (storage.path / "step-15.term-2", "is one checkpoint; give the directory"),
        ("x3://bucket/run", "Protocol not known"),
    ):
        assert ctl(command, place, *options) == 2
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
    storage: LocalStorage, capsys: Capture, options: list[object], text: str
) -> None:
    before = entries_of(storage.path)
    assert ctl("prune", storage.path, *options) == 2
    assert text in capsys.readouterr().err
    assert entries_of(storage.path) == before


_WITHOUT_TORCH = """
import sys
from elastic_runtime.cli.ctl.elasticctl import main
code = main(["checkpoint", "verify", sys.argv[1]])
assert "torch" not in sys.modules
sys.exit(code)
"""


def test_it_needs_no_torch(storage: LocalStorage) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, str(storage.path)], timeout=PROGRAM_TIMEOUT
    )
    assert done.returncode == 0
