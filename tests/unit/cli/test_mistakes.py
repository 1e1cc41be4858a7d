"""What a user may get wrong before anything is started: ``tests.mistakes`` has the tables."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import pytest
import torch

from elastic_runtime.cli.ctl import elasticctl
from elastic_runtime.cli.run import elastic_run
from tests.mistakes.elastic_run import ELASTIC_RUN
from tests.mistakes.elasticctl import ELASTICCTL
from tests.mistakes.files import FILES
from tests.mistakes.row import Mistake

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.flags.flag_parser import Parser


@pytest.fixture(scope="module")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "adir" / "file").unlink()
    return folder


@pytest.fixture(autouse=True)
def _plain_shell(_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_files)
    for name in list(os.environ):
        if name.startswith(("PET_", "ELASTIC_", "KUBE", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(_files))  # no kubeconfig of somebody's


def _name(case: object) -> str:
    if not isinstance(case, Mistake):
        return str(case)
    return " ".join([*(f"{k}={v}" for k, v in case.environ.items()), case.command[:60]])


@pytest.mark.parametrize(
    ("begin", "mistake"),
    [
        *(("elastic-run: ", one) for one in ELASTIC_RUN),
        *(("elasticctl: error: ", one) for one in ELASTICCTL),
    ],
    ids=_name,
)
def test_what_is_wrong_is_said(
    parser: Parser,  # torch is imported by now, and what others say meanwhile is said
    begin: str,
    mistake: Mistake,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if mistake.without_gpu and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for name, value in mistake.environ.items():
        monkeypatch.setenv(name, value)
    main = elasticctl.main if "ctl" in begin else elastic_run.main
    code = main(shlex.split(mistake.command))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(begin)
    mistake.check(code, shown.err)
