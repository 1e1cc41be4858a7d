"""The splitting of command lines: torchrun's rules with our options among its own."""

from __future__ import annotations

import os

import pytest
from torch.distributed.run import get_args_parser

from elastic_runtime.cli.flags.flag_parser import Parser, misplaced
from elastic_runtime.errors import UsageError


def test_what_follows_the_script_is_the_scripts(parser: Parser) -> None:
    line = parser.split("--max 4 train.py --max 7 --listen x -- --min".split())
    assert line.given == {"max": "4"}
    assert line.script == "train.py"
    assert line.args == ("--max", "7", "--listen", "x", "--", "--min")


@pytest.mark.parametrize("option", ["--snap", "--lease", "--log", "--s"])
def test_the_scripts_options_may_be_the_beginning_of_several_of_ours(
    parser: Parser, option: str
) -> None:
    line = parser.split(["--max", "4", "train.py", option, "3"])
    assert (line.given, line.args) == ({"max": "4"}, (option, "3"))


def test_every_option_of_torchruns_is_known(parser: Parser) -> None:
    theirs = {action.dest for action in get_args_parser()._actions if action.option_strings}
    assert theirs - {"help", "print_completion"} <= set(parser.options)


@pytest.mark.parametrize(
    ("typed", "dest"),
    [
        ("--max=4", "max"),
        ("--min 2", "min"),
        ("--max-restarts 5", "max_restarts"),
        ("--max_restarts 5", "max_restarts"),
        ("--lease_ttl 9", "lease_ttl"),
        ("--run-id a", "rdzv_id"),
        ("--rdzv_id a", "rdzv_id"),
        ("-r 3", "redirects"),
        ("-m", "module"),
        ("--nn 2", "nnodes"),  # torchrun takes unambiguous abbreviations
    ],
)
def test_spellings(parser: Parser, typed: str, dest: str) -> None:
    assert list(parser.split([*typed.split(), "t.py"]).given) == [dest]


@pytest.mark.parametrize(
    ("arguments", "listen", "script"),
    [
        ("--listen train.py", "", "train.py"),
        ("--listen 0.0.0.0 train.py", "0.0.0.0", "train.py"),
        ("--listen 10.0.0.5:29400 train.py", "10.0.0.5:29400", "train.py"),
        ("--listen :29400 train.py", ":29400", "train.py"),
        ("--listen [::1]:29400 train.py", "[::1]:29400", "train.py"),
        ("--listen node-a:29400 train.py", "node-a:29400", "train.py"),
        ("--listen * train.py", "*", "train.py"),
        ("--listen=node-a train.py", "node-a", "train.py"),
        ("--listen=node-a:29400 train.py", "node-a:29400", "train.py"),
    ],
)
def test_listen_never_swallows_the_script(
    parser: Parser, arguments: str, listen: str, script: str
) -> None:
    line = parser.split(arguments.split())
    assert (line.given["listen"], line.script) == (listen, script)


def test_preload_may_be_given_several_times(parser: Parser) -> None:
    line = parser.split("--preload numpy,scipy --preload pandas train.py".split())
    assert line.given["preload"] == "numpy,scipy,pandas"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "which script"),
        ("--max 4", "which script"),
        ("--bogus train.py", "--bogus"),
        ("--re 3 train.py", "ambiguous"),
        ("--max", "--max needs a value"),
    ],
)
def test_errors_are_one_line(parser: Parser, arguments: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parser.split(arguments.split())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_variable_does_not_stop_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_STANDALONE", "maybe")
    monkeypatch.setenv("PET_MAX_RESTARTS", "many")
    Parser()
    assert os.environ["PET_STANDALONE"] == "maybe"


def test_help_shows_ours_first_and_one_spelling_each(parser: Parser) -> None:
    text = parser.help()
    assert 0 < text.index("--min N") < text.index("--nnodes")
    assert "--nproc-per-node" in text
    assert "--nproc_per_node" not in text
    assert "torchrun: 0" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ("train.py --local-nodes 3", ["--local-nodes"]),
        ("--max 2 train.py --nproc_per_node=2 --rdzv-id h", ["--nproc-per-node", "--rdzv-id"]),
        ("--local-nodes 3 train.py --max 4 --config c", []),  # a script may have such ones
    ],
)
def test_an_option_behind_the_script_is_told_of(
    parser: Parser, arguments: str, flags: list[str]
) -> None:
    told = misplaced(parser.split(arguments.split()))
    assert len(told) == len(flags)
    for flag, line in zip(flags, told, strict=True):
        assert line.startswith(flag) and "stands after train.py" in line
