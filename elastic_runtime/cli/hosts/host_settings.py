"""What follows from a list of hosts, as settings: below all that people say themselves."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING, Never

from elastic_runtime.cli.flags.setting_sources import Level
from elastic_runtime.cli.hosts.host_source import HostSource
from elastic_runtime.cli.slurm.slurm_settings import AUTO, OFF
from elastic_runtime.errors import UsageError
from elastic_runtime.reporting.json_lines import CONSOLE

if TYPE_CHECKING:
    from elastic_runtime.cli.flags.setting_sources import Settings
    from elastic_runtime.cli.hosts.listed_hosts import Host

# Seconds in which the hosts that are listed at first, and are started at once, are waited for.
_ALL_HERE = 30
# What depends on the devices of a machine: each of them checks it for itself.
_STATIC = ("rdzv_backend", "node_rank", "master_addr", "master_port")
OF_EACH_HOST = ("nproc_per_node", "virtual_local_rank", "numa_binding", "regroup")


def source_of(settings: Settings) -> HostSource | None:
    """The list of hosts that is asked for; None: the job runs here.

    Raises:
        UsageError: there are two, what cannot go with one, or no ssh.
    """
    given = [settings.of(dest) for dest in ("hosts", "discover") if settings.given(dest)]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]}: give one of them")
    if settings["slurm"] not in (AUTO, OFF):
        raise UsageError(f"{settings.of('slurm')} and {given[0]}: a job has one kind of nodes")
    several = settings["local_nodes"] > 1
    of_one = ("standalone", "node_name", "node_life", "node_topology")
    for dest in (*(["local_nodes"] if several else []), *of_one):
        if settings[dest]:
            raise UsageError(
                f"{settings.of(dest)} is for nodes here, {given[0]} for other machines"
            )
    ssh_of(settings)
    (path,) = (setting.value for setting in given)
    if not path:
        raise UsageError(f"{given[0].option.flags[0]} is empty: it names a list of hosts")
    return HostSource(path, is_program=settings.given("discover"))


def refuse_static(settings: Settings, backend: str) -> Never:
    """Refuses a list of hosts for a job that torch's own launcher would run.

    Raises:
        UsageError: always.
    """
    given = [str(settings.of(dest)) for dest in _STATIC if settings.given(dest)]
    raise UsageError(
        f"{', '.join(given) or backend}: torchrun's static rendezvous, in which each node is "
        "started by hand; leave that out with a list of hosts"
    )


def ssh_of(settings: Settings) -> list[str]:
    """The ssh client with options of the user's.

    Raises:
        UsageError: it cannot be taken apart.
    """
    try:
        words = shlex.split(settings["ssh"])
    except ValueError as error:
        raise UsageError(f"{settings.of('ssh')}: {error}") from None
    if not words:
        raise UsageError(f"{settings.of('ssh')} names no program")
    if shutil.which(words[0]) is None:
        raise UsageError(f"{settings.of('ssh')}: there is no program {words[0]!r} here")
    return words


def on_hosts(settings: Settings, source: HostSource, hosts: tuple[Host, ...]) -> Settings:
    """The settings with what follows from a list.

    Args:
        settings: what people say.
        source: the list.
        hosts: that are on it now.

    Raises:
        UsageError: there is none.
    """
    if not hosts:
        raise UsageError(f"{source.path} lists no host")
    said = {
        "log_format": (source.path, CONSOLE),  # of several nodes, for people
        "last_call": (source.path, str(_ALL_HERE)),
    }
    if bounded_by_list(settings):
        low = settings["min"] if settings.given("min") else 1
        said["max"] = (source.path, str(max(low, len(hosts))))
    if not (settings.given("rdzv_endpoint") or settings.given("rdzv_backend")):
        said["listen"] = (source.path, "")
    return settings.with_places(said)


def bounded_by_list(settings: Settings) -> bool:
    """Whether as many nodes may train as are listed, as nobody says otherwise."""
    return settings.of("max").level <= Level.PLACE and not settings.given("nnodes")
