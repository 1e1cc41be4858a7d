"""torchrun's own rendezvous without membership (``static``, ``etcd-v2``): torch runs those jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.cli.flags.flag_options import OURS
from elastic_runtime.cli.flags.setting_sources import Level

if TYPE_CHECKING:
    from elastic_runtime.cli.flags.flag_parser import CommandLine
    from elastic_runtime.cli.flags.node_bounds import Bounds
    from elastic_runtime.cli.flags.setting_sources import Settings
    from elastic_runtime.cli.run.store_target import TorchrunTarget

# Said in torch's words below, whatever source or spelling they came from.
_TRANSLATED = ("nnodes", "rdzv_backend", "shutdown_timeout")


def as_torchrun(
    line: CommandLine, settings: Settings, target: TorchrunTarget, bounds: Bounds
) -> list[str]:
    """The arguments with which torchrun does what was asked for, as far as it can."""
    ours = [option.dest for option in OURS]
    arguments = ["--nnodes", f"{bounds.low}:{bounds.high}", "--rdzv-backend", target.backend]
    for dest in ("grace", "shutdown_timeout"):
        if settings.given(dest) and "shutdown_timeout" in settings:
            arguments += ["--shutdown-timeout", str(round(settings[dest]))]
    arguments += settings.as_flags(without=(*ours, *_TRANSLATED))
    return [*arguments, line.script, *line.args]


def without_effect(settings: Settings) -> list[str]:
    """Those of our options that were given and that torchrun does not know."""
    known = {"min", "max", "config"}
    if "shutdown_timeout" in settings:  # since torch 2.12
        known.add("grace")
    return [
        settings.of(option.dest).source
        for option in OURS
        if option.dest not in known and settings.of(option.dest).level > Level.PLACE
    ]


def run_torchrun(arguments: list[str]) -> int:
    """Runs torch's launcher in this process, with its own defaults and its own report."""
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.run import parse_args, run

    record(run)(parse_args(arguments))
    return 0
