"""Command lines taken apart: what is ours, what is torchrun's, what only looks like a setting."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed.run import get_args_parser

from elastic_runtime.cli.flags import torchrun_parser
from elastic_runtime.cli.flags.flag_options import OURS, Option
from elastic_runtime.cli.flags.flag_parser import Parser, misplaced
from elastic_runtime.cli.flags.unknown_variables import unknown_variables
from elastic_runtime.errors import UsageError
from tests.unit.programs import python

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


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
    assert "10m" in text, "times are shown as people type them"
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


@pytest.mark.parametrize("name", ["node-life", "once", "patient"])
def test_what_only_launchers_say_is_no_flag(parser: Parser, name: str) -> None:
    assert f"--{name}" not in parser.help()
    with pytest.raises(UsageError, match=f"there is no option --{name}"):
        parser.split([f"--{name}", "train.py"])


def test_no_two_flags_share_a_name() -> None:
    names = Counter(name for option in OURS for name in (*option.names, *option.flags))
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("option", [one for one in OURS if one.flags], ids=lambda one: one.dest)
def test_each_flag_can_be_written_in_two_ways_and_says_what_it_is_for(option: Option) -> None:
    assert option.group and option.help
    for flag in option.flags:
        assert flag.startswith("--")
        assert "--" + flag.removeprefix("--").replace("-", "_") in option.flags


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LEASE_TLL", "LEASE_TTL"),
        ("RUNID", "RUN_ID"),
        ("NODES", "NNODES"),
        ("RDZV_ENDPOIN", "RDZV_ENDPOINT"),
        ("ETCD_PASWORD", "ETCD_PASSWORD"),
    ],
)
def test_one_that_resembles_a_setting_is_told(parser: Parser, name: str, meant: str) -> None:
    [line] = unknown_variables(parser.options.values(), {f"ELASTIC_{name}": "geheim"})
    assert line.startswith(f"ELASTIC_{name} has no effect")
    assert line.endswith(f"did you mean 'ELASTIC_{meant}'?")
    assert "geheim" not in line


def test_whatever_has_a_meaning_or_is_somebody_elses_is_not(parser: Parser) -> None:
    names = [
        # Settings
        *("LEASE_TTL", "RUN_ID", "RDZV_ID", "ETCD_PASSWORD", "NNODES", "LOG_FILE"),
        # What this package sets for workers, pods and its own controller; a worker may run a job
        *("CHANNEL", "PROGRESS", "ROUND", "INCARNATION", "NODE_NAME", "WORKER", "SNAPSHOTS"),
        *("PEER_TIMEOUT", "CHECKPOINT", "ETCD_IMAGE", "NODE_LIFE", "RESUMING"),
        # The tests' own
        *("TEST_CLUSTER", "TEST_IMAGE", "TEST_MARK"),
        # Elasticsearch's relatives
        *("APM_SERVER_URL", "APM_SECRET_TOKEN", "CLOUD_ID", "VERSION"),
    ]
    environ = dict.fromkeys((f"ELASTIC_{name}" for name in names), "1")
    # A Service of Kubernetes that is called elastic-log
    environ |= {
        "ELASTIC_LOG_SERVICE_HOST": "10.0.0.1",
        "ELASTIC_LOG_SERVICE_PORT": "80",
        "ELASTIC_LOG_PORT": "tcp://10.0.0.1:80",
        "ELASTIC_LOG_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_variables(parser.options.values(), environ) == []


def _described(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    return [
        {
            **{name: value for name, value in vars(action).items() if name != "container"},
            "type": getattr(action.type, "__name__", action.type),
            "action": type(action).__name__,
        }
        for action in parser._actions
    ]


def test_the_source_makes_the_parser_that_torch_makes() -> None:
    assert _described(torchrun_parser._from_source()) == _described(torchrun_parser._imported())


def test_a_torch_that_is_written_otherwise_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> argparse.ArgumentParser:
        raise NameError("name 'something_new' is not defined")

    monkeypatch.setattr(torchrun_parser, "_from_source", unknown)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(torchrun_parser, "import_torch", lambda: None)
    parser = torchrun_parser.torchrun_parser()
    assert _described(parser) == _described(torchrun_parser._imported())


def test_torchs_stack_is_not_shown_where_somebody_else_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = """
import datetime, os, socket, sys, threading
from elastic_runtime.cli.flags.torchrun_parser import import_torch
import_torch()
assert "TORCH_CPP_LOG_LEVEL" not in os.environ  # not for workers
from torch.distributed import TCPStore

def greet():
    while True:
        other, _ = server.accept()
        other.sendall(b"SSH-2.0-OpenSSH")

server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=greet, daemon=True).start()
try:
    TCPStore(
        "127.0.0.1", server.getsockname()[1], is_master=False, wait_for_workers=False,
        timeout=datetime.timedelta(seconds=1),
    )
except RuntimeError:
    print("no store")
"""
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    done = python("-c", program)
    assert (done.stdout, done.stderr) == ("no store\n", "")


def test_a_command_line_is_read_without_torch(folder: Path) -> None:
    program = """
import os, sys
sys.modules["torch.distributed"] = None  # torch itself must be found, not imported
from elastic_runtime.cli.run.job_from_command import read_job
from elastic_runtime.cli.run.elastic_run import Parser, read_settings
from elastic_runtime.errors import UsageError
parser = Parser()
line = parser.split(["--max", "4", "--nproc-per-node", "2", "--numa-binding", "node", "train.py"])
job = read_job(line, read_settings(parser.options, line.given, {}), {})
assert (job.config.max_nodes, job.config.workers) == (4, 2)
sys.exit("torch" in sys.modules)
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
