"""What the pure parts of an agent are told of the job's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime import __version__
from elastic_runtime.agent.lifecycle.lifecycle_types import Settings
from elastic_runtime.config import PROTOCOL
from elastic_runtime.rendezvous.core.node_state import IN_ONE_PIECE, Layout, Policy

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint, JobConfig


def settings_of(config: JobConfig) -> Settings:
    """The settings of the agent's life."""
    times = config.timeouts
    return Settings(
        config.workers,
        times.grace,
        times.broken_grace,
        config.max_restarts,
        min_workers=config.min_workers,
        rejoin=times.rejoin,
    )


def policy_of(config: JobConfig) -> Policy:
    """The settings of the rendezvous."""
    times = config.timeouts
    return Policy(
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        node_unit=config.node_unit,
        entry=config.entry.name,
        max_restarts=config.max_restarts,
        last_call=times.last_call,
        join=times.join,
        rejoin=times.rejoin,
        fence=times.fence,
        batch=times.batch,
        settle=max(3.0, times.lease_ttl),
        connect=times.connect,
        remedy=_remedy(config.endpoint),
        layout=IN_ONE_PIECE if config.endpoint.backend == "c10d" else Layout(),
        resuming=config.resuming,
        invocation=config.invocation,
        protocol=PROTOCOL,
        release=__version__,
    )


def _remedy(endpoint: Endpoint) -> str:
    """What people can do about a store that is lost for good."""
    if endpoint.backend != "c10d":
        return ""
    host = endpoint.hosts[0]
    return (
        f"it was hosted at {host}: if that machine is gone, start the job anew with another "
        "--rdzv-endpoint, and it resumes from its checkpoint; an etcd outlives any node"
    )
