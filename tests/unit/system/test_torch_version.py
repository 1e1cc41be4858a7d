"""Which torch is refused, which one is warned of, and that all places name the same range."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.launch import launch
from elastic_runtime.cli.run import elastic_run
from elastic_runtime.config import JobConfig
from elastic_runtime.errors import EXIT_USAGE, UsageError
from elastic_runtime.system import torch_version
from elastic_runtime.system.torch_version import NEWEST, OLDEST, read_version
from tests.unit.programs import python

if TYPE_CHECKING:
    from collections.abc import Callable

    Install = Callable[[str], None]

ROOT = Path(__file__).parents[3]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Has another version of torch be found first, as pip leaves it beside the package itself."""

    def put(version: str) -> None:
        place = tmp_path / f"torch-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.13.0", (2, 13)),
        ("2.13.0+cpu", (2, 13)),
        ("2.16.0.dev20260101+cu132", (2, 16)),
        ("2.11.0a0+git1a2b3c", (2, 11)),
        ("3.0", (3, 0)),
        ("nightly", None),
        ("2", None),
    ],
)
def test_versions_are_read(text: str, numbers: tuple[int, int] | None) -> None:
    assert read_version(text) == numbers


TESTED = ["2.11.0", "2.11.0a0+git1a2b", "2.15.1+cpu", "unreadable", "that of these tests"]


@pytest.mark.parametrize("version", TESTED)
def test_nothing_is_said_of_what_was_tested_or_cannot_be_read(
    version: str, install: Install
) -> None:
    if version != "that of these tests":
        install(version)
    torch_version.refuse_unsupported()
    assert torch_version.untested() == ""


@pytest.mark.parametrize("version", ["2.10.1+cu130", "2.9.0", "1.13.1"])
def test_an_older_one_is_refused_in_one_line(
    version: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(version)
    assert elastic_run.main(["nowhere.py"]) == EXIT_USAGE
    assert capsys.readouterr().err == (
        f"elastic-run: error: torch {version} is too old, as 2.11 is the oldest that this works "
        "with: pip install 'torch>=2.11,<2.16'\n"
    )


@pytest.mark.parametrize("version", ["2.16.0.dev20260101+cu132", "2.16.0", "3.0.1"])
def test_a_newer_one_is_warned_of_in_one_line_and_used(
    version: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(version)
    assert elastic_run.main(["nowhere.py"]) == EXIT_USAGE  # of the script that is not there
    warning, *rest = capsys.readouterr().err.splitlines()
    assert warning == (
        f"elastic-run: warning: torch {version} is newer than 2.15, the newest that this was "
        "tested with: if something fails, pip install 'torch>=2.11,<2.16'"
    )
    assert len(rest) == 1 and "nowhere.py" in rest[0]


def test_the_node_of_another_elastic_run_does_not_repeat_the_warning(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("2.16.0")
    elastic_run.main(["nowhere.py"], invocation="another")
    assert "tested" not in capsys.readouterr().err


def test_a_job_that_python_starts_is_refused_as_well(install: Install) -> None:
    install("2.10.0")
    with pytest.raises(UsageError, match=r"^torch 2\.10\.0 is too old"):
        launch(JobConfig(), print)


def test_no_torch_at_all_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_version, "installed", lambda: "")
    torch_version.refuse_unsupported()  # there is one, of which nothing is known
    assert torch_version.untested() == ""
    monkeypatch.setattr(torch_version, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^torch is not installed here: pip install 'torch>="):
        torch_version.refuse_unsupported()


def test_the_package_requires_the_same_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [need for need in project["dependencies"] if need.startswith("torch")]
    assert found == [torch_version.requirement()]


def test_a_job_of_each_kind_came_out_well_with_each_version() -> None:
    rows = re.findall(
        r"^\| (\d+)\.(\d+)\S* (\|.*)$", (ROOT / "docs" / "torch-versions.md").read_text(), re.M
    )
    cells = {(int(major), int(minor)): rest.count("| yes") for major, minor, rest in rows}
    assert OLDEST[0] == NEWEST[0], "say which minor versions there are in between"
    wanted = {(OLDEST[0], minor) for minor in range(OLDEST[1], NEWEST[1] + 1)}
    assert {version for version, well in cells.items() if well == 4} == wanted


def test_torch_is_not_imported_for_it() -> None:
    program = (
        "import sys; from elastic_runtime.system import torch_version as version; "
        "version.refuse_unsupported(); version.untested(); sys.exit('torch' in sys.modules)"
    )
    assert python("-c", program).returncode == 0
