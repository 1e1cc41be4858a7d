"""What the commands share: which cluster and which job a command line names, and its client."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from elastic_runtime.cli.kube.job_client import JobClient
from elastic_runtime.kubernetes.cluster_access import ClusterRef

_F = Callable[..., Any]


@dataclass(frozen=True)
class JobRef:
    """A job of a cluster, as a command line names it."""

    cluster: ClusterRef
    name: str


def cluster_options(command: _F) -> _F:
    """The options that say which cluster; the command gets a ``ClusterRef``."""

    @functools.wraps(command)
    def called(**values: Any) -> Any:
        ref = ClusterRef(values.pop("context"), values.pop("namespace"))
        return command(ref, **values)

    called = click.option("--context", default="", help="a context of the kubeconfig")(called)
    return click.option("--namespace", "-n", default="", help="that of the context otherwise")(
        called
    )


def connect(ref: ClusterRef) -> JobClient:
    """Opens a cluster until the command ends.

    Raises:
        UsageError: there are no usable credentials, or the extra is not installed.
    """
    return click.get_current_context().with_resource(JobClient(ref))
