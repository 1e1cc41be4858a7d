"""What the controller is started with: arguments that cannot be, and an installation that lacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elastic_runtime.controller.__main__ import _parser, main
from elastic_runtime.errors import EXIT_USAGE
from tests.processes import PROGRAM_TIMEOUT


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lease-seconds", "inf"),
        ("--lease-seconds", "nan"),
        ("--lease-seconds", "0.001"),
        ("--lease-seconds", "soon"),
        ("--liveness-port", "70000"),
        ("--liveness-port", "-1"),
        ("--namespace", "../kube-system"),
        ("--topology-labels", "zone,,rack"),
        ("--topology-labels", "a/b/c"),
    ],
)
def test_an_option_that_cannot_be_is_named(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"{option}={value}"])
    assert ended.value.code == EXIT_USAGE
    told = capsys.readouterr().err
    assert f"argument {option}: {value!r} is no " in told


def test_without_the_extra_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from elastic_runtime.controller.__main__ import main\n"
        "sys.exit(main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT,
        check=False,
    )
    assert done.returncode == EXIT_USAGE
    assert done.stderr == (
        "elastic-controller: jobs on Kubernetes need the package 'aiohttp', which is not "
        "installed: pip install 'elastic-runtime[kubernetes]'\n"
    )


@pytest.mark.parametrize(
    ("environment", "options", "labels"),
    [
        ("", [], ()),
        ("zone, example.com/rack", [], ("zone", "example.com/rack")),
        ("zone", ["--topology-labels=rack"], ("rack",)),
        ("zone", ["--topology-labels="], ()),
    ],
)
def test_labels_of_nodes_come_from_the_option_or_the_environment(
    environment: str,
    options: list[str],
    labels: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ELASTIC_TOPOLOGY_LABELS", environment)
    assert _parser().parse_args(options).topology_labels == labels
    monkeypatch.setenv("ELASTIC_TOPOLOGY_LABELS", "a/b/c")
    with pytest.raises(SystemExit, match=str(EXIT_USAGE)):
        main([])
    assert "'a/b/c' is no list" in capsys.readouterr().err
