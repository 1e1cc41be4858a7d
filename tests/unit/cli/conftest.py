"""What the tests of the command line share: one parser (it imports torch), and readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.flags.flag_parser import Parser
from elastic_runtime.cli.flags.setting_sources import Settings, read_settings
from elastic_runtime.cli.run.job_from_command import read_job
from elastic_runtime.config import JobConfig
from tests.unit.cli.stand_ins import StandIns

if TYPE_CHECKING:
    from pathlib import Path

SettingsOf = Callable[..., Settings]
JobOf = Callable[..., Any]  # a Job, or a TorchrunTarget
ConfigOf = Callable[..., JobConfig]


@pytest.fixture(scope="session")
def parser() -> Parser:
    return Parser()


@pytest.fixture
def settings_of(parser: Parser) -> SettingsOf:
    """Settings from a command line and an environment; the script is added."""

    def read(arguments: str = "", **environ: str) -> Settings:
        line = parser.split([*arguments.split(), "train.py"])
        return read_settings(parser.options, line.given, environ)

    return read


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script in it."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def job_of(parser: Parser, folder: Path) -> JobOf:
    """The job of a command line and an environment, in ``folder``; ends with ``train.py``."""

    def read(arguments: str = "", script: str = "train.py", **environ: str) -> Any:
        line = parser.split([*arguments.split(), *script.split()])
        settings = read_settings(parser.options, line.given, environ)
        return read_job(line, settings, environ)

    return read


@pytest.fixture
def config_of(job_of: JobOf) -> ConfigOf:
    """The config of such a job."""
    return lambda *arguments, **environ: job_of(*arguments, **environ).config


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Programs in the place of others; none yet."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return StandIns(folder, monkeypatch)
