"""What torchrun is told of a command line that is its business."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.flags.node_bounds import read_bounds
from elastic_runtime.cli.flags.setting_sources import read_settings
from elastic_runtime.cli.run.store_target import (
    TorchrunTarget,
)
from elastic_runtime.cli.run.torchrun_fallback import as_torchrun, without_effect

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.flags.flag_parser import Parser


def test_what_torchrun_is_told(parser: Parser, folder: Path) -> None:
    if "shutdown_timeout" not in parser.options:
        pytest.skip("torchrun has --shutdown-timeout since torch 2.12")
    typed = "--nnodes 2 --node-rank 1 --master-addr h --max-restarts 2 --lease-ttl 3 --grace 4"
    line = parser.split([*typed.split(), "train.py", "--x"])
    settings = read_settings(parser.options, line.given, {"ELASTIC_TEE": "3"})
    told = as_torchrun(line, settings, TorchrunTarget("static"), read_bounds(settings))
    assert (
        told
        == (
            "--nnodes 2:2 --rdzv-backend static --shutdown-timeout 4 --max-restarts 2 --tee 3 "
            "--node-rank 1 --master-addr h train.py --x"
        ).split()
    )
    assert without_effect(settings) == ["--lease-ttl"]


def test_torchrun_keeps_its_own_default_of_max_restarts(parser: Parser, folder: Path) -> None:
    line = parser.split(["--rdzv-backend", "static", "train.py"])
    settings = read_settings(parser.options, line.given, {})
    told = as_torchrun(line, settings, TorchrunTarget("static"), read_bounds(settings))
    assert "--max-restarts" not in told
