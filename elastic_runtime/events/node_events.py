"""Events of one node: it leaves, it is excluded, and what its agent cannot have on its machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.events.event import DEBUG, ERROR, WARNING, Event

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class NodeLeaving(Event):
    """A signal has asked this node to leave the job."""

    name = "node.leaving"
    sentence = "leaving: {reason}"
    whole_job = False

    reason: str


@dataclass(frozen=True)
class NodeExcluded(Event):
    """The job goes on without this node, or its lease is over; it joins again as a new node."""

    name = "node.excluded"
    level = WARNING
    sentence = "excluded from the job ({reason}); joining again as a new node"
    whole_job = False

    reason: str


@dataclass(frozen=True)
class NodeCutOff(Event):
    """In place: this node does not reach other members of its round, and leaves the round."""

    name = "node.cut_off"
    level = DEBUG
    sentence = "{reason}"
    shown = False

    reason: str
    nodes: Sequence[str]


@dataclass(frozen=True)
class AgentCrashEvent(Event):
    """A defect of this package ends the agent. The command's last line says it to people."""

    name = "agent.crashed"
    level = ERROR
    sentence = "{reason}"
    shown = False

    reason: str
    file: str


@dataclass(frozen=True)
class ListeningWide(Event):
    """The agent listens at all addresses of its machine, as its own is not known there."""

    name = "listening.wide"
    sentence = (
        "listening at all addresses: {reason}; --local-addr with an IP address of this machine "
        "narrows it down"
    )
    shown = False

    address: str
    reason: str


@dataclass(frozen=True)
class MetricsOff(Event):
    """The address of ``--metrics-port`` cannot be listened at."""

    name = "metrics.off"
    level = WARNING
    sentence = "no metrics: cannot listen at {where} (--metrics-port): {why}"
    whole_job = False

    where: str
    why: str


@dataclass(frozen=True)
class TopologyUnknown(Event):
    """The file of ``--node-topology-file`` has not said in time where this node is."""

    name = "topology.unknown"
    level = WARNING
    sentence = "no topology: {path} {why} (--node-topology-file); this node joins without one"
    whole_job = False

    path: str
    why: str


@dataclass(frozen=True)
class PrivateLost(Event):
    """The agent's directory of temporary files was removed, and it cannot be made again."""

    name = "private.lost"
    level = WARNING
    sentence = (
        "{path} was removed and cannot be made again ({why}): workers that start now cannot "
        "connect to their agent"
    )
    whole_job = False

    path: str
    why: str


@dataclass(frozen=True)
class ProgressOff(Event):
    """There is no space for the file in which a worker counts its steps; once for each worker."""

    name = "progress.off"
    level = WARNING
    sentence = (
        "{path} cannot be written ({why}): the agent does not see the steps of workers that start "
        "now"
    )
    whole_job = False

    path: str
    why: str
