"""From a command line to a checked job, and to the commands that start further nodes of it."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.flags.build_config import TorchrunVariables, job_config
from elastic_runtime.cli.flags.node_bounds import read_bounds
from elastic_runtime.cli.flags.setting_sources import VARIABLES
from elastic_runtime.cli.run.accelerate_file import DEFAULT, NONE
from elastic_runtime.cli.run.store_target import (
    EmbeddedTarget,
    TorchrunTarget,
    choose_run_id,
    choose_store,
    embedded_endpoint,
)
from elastic_runtime.cli.run.worker_program import check_entry, read_entry
from elastic_runtime.config import LOOPBACK, SCRIPT
from elastic_runtime.endpoint import read_credentials

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from elastic_runtime.cli.flags.flag_parser import CommandLine
    from elastic_runtime.cli.flags.setting_sources import Settings
    from elastic_runtime.cli.hosts.listed_hosts import Host
    from elastic_runtime.config import JobConfig

# What belongs to one node, and is said again for each further node.
_NOT_PASSED_ON = (
    *("min", "max", "nnodes", "local_nodes", "node_name", "metrics_port", "config"),
    *("listen", "standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id"),
    *("monitor_interval", "start_method", "logs_specs"),
    *("node_rank", "master_addr", "master_port"),
    *("hosts", "discover", "ssh", "slurm", "requeue"),
)
# What is right on one machine only.
_ONE_MACHINE = ("local_addr", "node_topology")


@dataclass(frozen=True)
class Job:
    """A command line that has been read and found right.

    Attributes:
        line, settings: what was typed, and what it means.
        config: all settings of this node; its endpoint is a placeholder for an embedded store.
        embedded: the store to host, or None.
        local_nodes: how many nodes to start here.
    """

    line: CommandLine
    settings: Settings
    config: JobConfig
    embedded: EmbeddedTarget | None
    local_nodes: int


def read_job(
    line: CommandLine, settings: Settings, environ: Mapping[str, str]
) -> Job | TorchrunTarget:
    """Checks everything that can be checked before anything is started.

    Raises:
        UsageError: something about the command line is wrong.
    """
    entry = read_entry(line, settings, environ)
    bounds = read_bounds(settings)
    names = ("etcd_user", "etcd_password_file", "etcd_ca", "etcd_cert", "etcd_key")
    credentials = read_credentials({name: settings[name] for name in names}, environ)
    target = choose_store(settings, bounds, credentials)
    run_id = choose_run_id(settings, target)
    check_entry(entry)
    if isinstance(target, TorchrunTarget):
        return target
    embedded = target if isinstance(target, EmbeddedTarget) else None
    endpoint = embedded_endpoint(LOOPBACK, 0) if isinstance(target, EmbeddedTarget) else target
    config = job_config(settings, entry, endpoint, run_id, bounds, TorchrunVariables.of(environ))
    return Job(line, settings, config, embedded, settings["local_nodes"])


def join_command(job: Job, config: JobConfig) -> str:
    """What to type in another terminal, or on another machine, to add a node to the job.

    Args:
        job: the job as it was typed.
        config: with the endpoint at which the store is really reached.
    """
    if shutil.which("elastic-run"):
        program = ["elastic-run"]
    else:
        program = [sys.executable, "-m", "elastic_runtime"]
    return shlex.join([*program, *node_arguments(job, config)])


def node_arguments(job: Job, config: JobConfig, own: Sequence[str] = ()) -> list[str]:
    """What to give ``elastic-run`` on another machine, for a node of the job.

    Args:
        job: the job as it was typed.
        config: with the endpoint at which the store is really reached.
        own: further options, of that node.
    """
    return [*_flags(job, config, _ONE_MACHINE), *own, *_script(job, config)]


def host_arguments(job: Job, config: JobConfig, host: Host) -> list[str]:
    """The same, for a node that this process starts there, and shows the output of."""
    own = ["--node-name", host.name, "--slurm", "off", "--log-format", config.log_format]
    if host.workers:
        own += ["--nproc-per-node", str(host.workers)]
    if config.metrics_port:
        own += ["--metrics-port", str(config.metrics_port)]
    return [*_flags(job, config, _ONE_MACHINE), *own, *_script(job, config)]


def host_order(job: Job, config: JobConfig, host: Host, invocation: str) -> dict[str, Any]:
    """What the far end of a node on another machine is told (``cli.hosts.remote_node``).

    Args:
        job: the job as it was typed.
        config: with the endpoint at which the store is really reached.
        host: the machine.
        invocation: this command.
    """
    return {
        "directory": os.getcwd(),
        "arguments": [invocation, *host_arguments(job, config, host)],
        "environment": host_environ(job, os.environ),
        # One node at a time on a machine; a name may be anything that ssh takes.
        "lock": hashlib.sha256(f"{config.run_id}/{host.name}".encode()).hexdigest()[:16],
    }


def local_commands(job: Job, config: JobConfig) -> dict[str, list[str]]:
    """The arguments of each local node, by its name."""
    prefix = config.node_name or "node"
    return {
        f"{prefix}{number}": [
            *_flags(job, config),
            *("--node-name", f"{prefix}{number}"),
            *_metrics_port(config, number),
            *(job.line.script, *job.line.args),
        ]
        for number in range(job.local_nodes)
    }


def _metrics_port(config: JobConfig, number: int) -> list[str]:
    """Local nodes are on one machine: each has a port of its own."""
    return ["--metrics-port", str(config.metrics_port + number)] if config.metrics_port else []


def host_environ(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """The same as ``local_environ``, for nodes on other machines."""
    return _without((*_NOT_PASSED_ON, *_ONE_MACHINE), job, environ)


def local_environ(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the local nodes: without what was said to their parent alone.

    A ``PET_STANDALONE``, for one, would have each of them host a store of its own.
    """
    return _without(_NOT_PASSED_ON, job, environ)


def _without(dests: Collection[str], job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    said = {
        prefix + name.upper()
        for prefix in VARIABLES.values()
        for dest in dests
        for name in job.settings.of(dest).option.names
    }
    inherited = {name: value for name, value in environ.items() if name not in said}
    return inherited | job.settings.as_variables(without=dests)


def _flags(job: Job, config: JobConfig, without: Sequence[str] = ()) -> list[str]:
    return [
        *("--min", str(config.min_nodes), "--max", str(config.max_nodes)),
        *("--rdzv-endpoint", str(config.endpoint), "--run-id", config.run_id),
        *job.settings.as_flags(without=(*_NOT_PASSED_ON, *without, "accelerate_config")),
        *_accelerate_file(job.settings),
    ]


def _accelerate_file(settings: Settings) -> list[str]:
    given = settings.of("accelerate_config")
    if not given.given:
        return []
    # As with the script: another terminal is most often in another directory.
    named = given.value not in (DEFAULT, NONE)
    return [f"--accelerate-config={Path(given.value).absolute() if named else given.value}"]


def _script(job: Job, config: JobConfig) -> list[str]:
    # Another terminal is most often in another directory.
    script = job.line.script
    if config.entry.kind == SCRIPT:
        script = str(Path(script).absolute())
    return [script, *job.line.args]
