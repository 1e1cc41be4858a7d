"""Options that only some versions of torchrun have: with each, and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.flags import flag_parser
from elastic_runtime.cli.flags.flag_parser import Parser
from elastic_runtime.cli.flags.node_bounds import read_bounds
from elastic_runtime.cli.flags.torchrun_parser import torchrun_parser
from elastic_runtime.cli.run.store_target import TorchrunTarget
from elastic_runtime.cli.run.torchrun_fallback import as_torchrun, without_effect
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from tests.unit.cli.conftest import ConfigOf, SettingsOf

SHUTDOWN = "--shutdown-timeout"
PREFIX = "--log-line-prefix-template"
COMPLETION = "--print-completion"


def torchruns(*, older: bool) -> argparse.ArgumentParser:
    """torchrun's parser as an older or a newer version has it."""
    parser = torchrun_parser()
    if older:
        for flag in (SHUTDOWN, PREFIX, COMPLETION):
            flag_parser._without(parser, flag)
    for flag, kind in () if older else ((SHUTDOWN, int), (PREFIX, str), (COMPLETION, str)):
        if flag not in parser._option_string_actions:
            parser.add_argument(flag, flag[:2] + flag[2:].replace("-", "_"), type=kind)
    return parser


@pytest.fixture(params=["older", "newer"])
def age(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def parser(age: str, monkeypatch: pytest.MonkeyPatch) -> Parser:
    """In the place of the one that all others share."""
    monkeypatch.setattr(flag_parser, "torchrun_parser", lambda: torchruns(older=age == "older"))
    return Parser()


def test_the_time_to_end_is_ours_in_each(config_of: ConfigOf, age: str) -> None:
    assert config_of("--grace 7").timeouts.grace == 7
    assert config_of("", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="8").timeouts.grace == 8
    if age == "older":
        with pytest.raises(UsageError, match=f"^there is no option {SHUTDOWN}"):
            config_of(f"{SHUTDOWN} 9")
    else:
        assert config_of(f"{SHUTDOWN} 9").timeouts.grace == 9


def test_torchrun_is_told_of_the_time_to_end_if_it_knows_the_option(
    settings_of: SettingsOf, age: str
) -> None:
    settings = settings_of("--rdzv-backend static --grace 7")
    line = flag_parser.CommandLine({}, "train.py", ())
    told = as_torchrun(line, settings, TorchrunTarget("static"), read_bounds(settings))
    lost = without_effect(settings)
    assert (SHUTDOWN in told, lost) == ((False, ["--grace"]) if age == "older" else (True, []))


def test_the_prefix_of_lines_is_taken_from_the_option_and_the_variable(
    config_of: ConfigOf, age: str
) -> None:
    variable = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]"}
    assert config_of("", **variable).output.prefix == "[${rank}]"
    if age == "newer":
        assert config_of(f"{PREFIX} ${{rank}}:", **variable).output.prefix == "${rank}:"


def test_the_completion_of_torchrun_is_none_of_ours(parser: Parser) -> None:
    with pytest.raises(UsageError, match=f"^there is no option {COMPLETION}"):
        parser.split([COMPLETION, "bash", "train.py"])
