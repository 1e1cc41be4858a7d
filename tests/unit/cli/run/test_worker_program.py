"""Scripts, modules and programs that are not there, found out before anything is started."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.run.worker_program import check_entry
from elastic_runtime.config import COMMAND, MODULE, SCRIPT, Entry
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_SPOILED = "raise SystemExit('a package was imported just to look for a module')"


@pytest.fixture
def modules(folder: Path) -> Path:
    """A package with a module, one that can be run, one that cannot be imported."""
    for name in ("plain", "runnable"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(_SPOILED)
    (folder / "plain" / "train.py").write_text("")
    (folder / "runnable" / "__main__.py").write_text("")
    (folder / "namespace").mkdir()
    (folder / "namespace" / "train.py").write_text("")
    return folder


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (SCRIPT, "train.py"),
        (SCRIPT, "./train.py"),
        (MODULE, "train"),
        (MODULE, "plain.train"),
        (MODULE, "runnable"),
        (MODULE, "namespace.train"),
        (MODULE, "json.tool"),
        (COMMAND, "sh"),
        (COMMAND, sys.executable),
    ],
)
def test_what_can_be_run(modules: Path, kind: str, target: str) -> None:
    check_entry(Entry(kind, target))


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        (SCRIPT, "trian.py", "there is no script 'trian.py' in '{here}'; did you mean 'train.py'?"),
        (SCRIPT, "zzz", "there is no script 'zzz' in '{here}'"),
        (SCRIPT, "no/such.py", "there is no directory '{here}/no'"),
        (SCRIPT, "plain", "the script 'plain' is a directory"),
        (MODULE, "nothing.here", "there is no module 'nothing.here'"),
        (MODULE, "plain.nothing", "there is no module 'plain.nothing'"),
        (MODULE, "train.nothing", "there is no module 'train.nothing'"),
        (MODULE, "plain", "'plain' is a package without a __main__"),
        (MODULE, "train.py", "there is no module 'train.py': leave -m out"),
        (MODULE, "a/b", "'a/b' is no name of a module"),
        (MODULE, "", "is no name of a module"),
        (COMMAND, "no-such-program", "there is no program 'no-such-program'"),
        (COMMAND, "./train.py", "there is no program './train.py' that can be run"),
    ],
)
def test_what_cannot_be_run(modules: Path, kind: str, target: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_entry(Entry(kind, target))
    assert words.format(here=modules) in str(caught.value)


def test_a_far_fetched_guess_is_not_made(modules: Path) -> None:
    with pytest.raises(UsageError) as caught:
        check_entry(Entry(SCRIPT, "trial2.py"))
    assert "did you mean" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_script_that_may_not_be_read(folder: Path) -> None:
    (folder / "train.py").chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        check_entry(Entry(SCRIPT, "train.py"))


def test_modules_of_another_interpreter_are_its_own_affair() -> None:
    check_entry(Entry(MODULE, "nothing.here", python=sys.executable))
