"""The part of a job's settings that the rendezvous uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_runtime import __version__, defaults
from elastic_runtime.config import PROTOCOL, Timeouts
from elastic_runtime.system import torch_version

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint, JobConfig


@dataclass(frozen=True, slots=True)
class Layout:
    """How the members of a round are stored; see ``core.round_parts``.

    Attributes:
        most: a round of more members is stored in parts.
        part: members in a part, on average.
        first: how many members the round's record names: the one that hosts its TCPStore, and those
            that could.
        keepers: how many members, spread over the ranks, keep the whole list.
    """

    most: int = 128
    part: int = 16
    first: int = 8
    keepers: int = 8


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decisions depend on; times in seconds.

    Attributes:
        min_nodes, max_nodes, node_unit, entry, in_place: for the job's record if we write it.
        secret: the job's, if we write its first record; "" for an agent of a test.
        max_restarts: failures of user code that the job may have.
        timeouts: the job's.
        join_batch_in_place: ``timeouts.join_batch`` where a change does not cost the members
            their processes.
        settle: after contact with the store was regained, or it lost its data, how long an absent
            key proves nothing; must exceed three reconnect back-offs, whatever ``last_call`` is.
        probe_after, probe_every: when a silent node is probed first, and how often.
        survey_timeout: how long the leader waits for members to say which nodes they reach.
        probe_stagger: extra wait per rank before a waiting member probes the leader, against
            storms.
        write_timeout: how long a write may take to succeed or to fail.
        remedy: what people can do about a store that does not come back.
        layout: how the members of a large round lie in the store.
        resuming: the job has run before, as the launcher of this node says: a store that shows
            nothing of it may have lost its data.
        once: a run that has ended well is over for good.
        invocation: the command that has started this node together with others; "": it is alone.
        protocol, release: of this package here; as in the job's record.
        torch, regroup: of this node; as in its record.
    """

    min_nodes: int = defaults.MIN_NODES
    max_nodes: int = defaults.MIN_NODES
    node_unit: int = defaults.NODE_UNIT
    entry: str = ""
    in_place: bool = False
    secret: str = field(default="", repr=False)
    max_restarts: int = defaults.MAX_RESTARTS
    timeouts: Timeouts = field(default_factory=Timeouts)
    join_batch_in_place: float = defaults.JOIN_BATCH_IN_PLACE
    settle: float = defaults.SETTLE
    probe_after: float = defaults.PROBE_AFTER
    probe_every: float = defaults.PROBE_EVERY
    survey_timeout: float = defaults.SURVEY_TIMEOUT
    probe_stagger: float = defaults.PROBE_STAGGER
    write_timeout: float = defaults.STORE_TIMEOUT
    remedy: str = ""
    layout: Layout = Layout()
    resuming: bool = False
    once: bool = False
    invocation: str = ""
    protocol: str = ""
    release: str = ""
    torch: str = ""
    regroup: str = ""

    @classmethod
    def of(cls, config: JobConfig) -> Policy:
        """The rendezvous' part of a job's settings.

        Raises:
            UsageError: the installed torch cannot regroup as it is wanted.
        """
        torch = torch_version.installed()
        return cls(
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            node_unit=config.node_unit,
            entry=config.entry.name,
            max_restarts=config.max_restarts,
            timeouts=config.timeouts,
            settle=max(defaults.SETTLE, config.timeouts.lease_ttl),
            remedy=_remedy(config.endpoint),
            resuming=config.resuming,
            once=config.once,
            invocation=config.invocation,
            protocol=PROTOCOL,
            release=__version__,
            torch=torch,
            regroup=torch_version.choose_regroup(
                config.regroup, torch, gpus=torch_version.has_gpus()
            ),
        )


def _remedy(endpoint: Endpoint) -> str:
    """What people can do about a store that does not come back."""
    if endpoint.backend != "c10d":
        return ""
    host = endpoint.hosts[0]
    return (
        f"the nodes host it themselves, first at {host}: if half of them or more are gone at once, "
        "start the job again, and it resumes from its checkpoint; an etcd does not depend on nodes"
    )
