"""The settings of a job on this node, as one frozen value that every part reads.

``elastic-run`` makes one from flags, environment and file; ``elastic_runtime.launch`` takes one
from Python. Nothing below reads a flag or an environment variable for a setting of its own.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from elastic_runtime import defaults
from elastic_runtime.defaults import STORE_TIMEOUT
from elastic_runtime.errors import UsageError
from elastic_runtime.limits import FENCE_RESERVE
from elastic_runtime.reporting.json_lines import AUTO
from elastic_runtime.topology import topology_problem, topology_text

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = "script"
MODULE = "module"
COMMAND = "command"
FUNCTION = "function"

LOOPBACK = "127.0.0.1"
LAST_PORT = 65535


# Of what nodes say to each other. It grows when that changes in a way that older versions do not
# understand: versions of this package that differ in it do not form one job.
PROTOCOL = "3"


class InvalidSetting(UsageError):
    """A value of a setting that no job can have.

    ``elastic-run`` says where a value was given instead of the name of its field.

    Args:
        why: what is wrong, and what to give instead.
        **values: by the fields of ``JobConfig`` or ``Timeouts`` that are wrong, their values.
    """

    def __init__(self, why: str, **values: object) -> None:
        super().__init__(f"{', '.join(f'{name}={value}' for name, value in values.items())}: {why}")
        self.why = why
        self.values = values


def check_bounds(min_nodes: int, max_nodes: int) -> None:
    """Makes sure that there can be a world of so many nodes.

    Raises:
        InvalidSetting: there cannot.
    """
    for name, value in (("min_nodes", min_nodes), ("max_nodes", max_nodes)):
        if value < 1:
            raise InvalidSetting("a job needs at least one node", **{name: value})
    if max_nodes < min_nodes:
        why = (
            f"the minimum {min_nodes} is above the maximum {max_nodes}; lower the minimum or raise"
        )
        raise InvalidSetting(f"{why} the maximum", min_nodes=min_nodes, max_nodes=max_nodes)


@dataclass(frozen=True)
class Entry:
    """What a worker runs.

    Attributes:
        kind: ``script`` (a Python file), ``module`` (``-m``), ``command`` (``--no-python``) or
            ``function``.
        target: the path, the module's name or the program; the qualified name of a function.
        args: its arguments.
        python: the interpreter for a script or module; "" means the agent's own.
        function: the function itself, for ``function``; called with ``args``.
    """

    kind: str
    target: str
    args: tuple[Any, ...] = ()
    python: str = ""
    function: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """What people call it; also what must agree between the nodes of a job."""
        return PurePath(self.target).name if self.kind == SCRIPT else self.target


@dataclass(frozen=True)
class Tls:
    """How to prove who is who to etcd; all are paths, empty means unused."""

    ca: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True)
class Endpoint:
    """Where the rendezvous store is.

    Attributes:
        backend: ``etcd`` (v3) or ``c10d``. torch's own ``static`` and ``etcd-v2`` never get here.
        hosts: ``host:port`` of each server.
        prefix: path under which all runs are kept, without slashes at its ends (etcd only).
        tls: used if ``secure``.
        secure: TLS is on.
        user, password: for etcd's own authentication; "" means none.
        hosted_here: this process tree hosts the store already (embedded store).
    """

    backend: str
    hosts: tuple[str, ...]
    prefix: str = defaults.PREFIX
    secure: bool = False
    tls: Tls = field(default_factory=Tls)
    user: str = ""
    password: str = field(default="", repr=False)
    hosted_here: bool = False

    def __str__(self) -> str:
        """The endpoint as a user would type it; never with the password."""
        if self.backend == "c10d":
            return f"c10d://{self.hosts[0]}"
        return f"{'etcds' if self.secure else 'etcd'}://{','.join(self.hosts)}/{self.prefix}"


# Names that fields of ``Timeouts`` once had: they were not those of the flags.
_FORMER_NAMES = {
    "connect": "connect_timeout",
    "join": "join_timeout",
    "rejoin": "rejoin_timeout",
    "fence": "fence_timeout",
    "hang": "hang_timeout",
    "kill": "kill_timeout",
    "batch": "join_batch",
    "probe": "probe_timeout",
}


# Options of torchrun's ``--rdzv-conf`` that are time-outs, and the fields of ``Timeouts`` that they
# set; of several for one field the last one here counts.
RDZV_CONF_TIMEOUTS = {
    "join_timeout": "join_timeout",
    "last_call_timeout": "last_call",
    "rejoin_timeout": "rejoin_timeout",
    "fence_timeout": "fence_timeout",
    "lease_ttl": "lease_ttl",
    "ttl": "lease_ttl",
    "timeout": "connect_timeout",
    "read_timeout": "connect_timeout",
    "connect_timeout": "connect_timeout",
    "batch": "join_batch",
}

# Fields of ``Timeouts`` that may be 0: such a wait is left out, or (``hang_timeout``) never ends.
# Twenty years; etcd grants no lease of centuries, and no clock counts to infinity.
LONGEST_TIME = 630_720_000.0
MAY_BE_ZERO = {"last_call", "grace", "broken_grace", "join_batch", "hang_timeout"}


def _with_former_names(cls: type[Timeouts]) -> type[Timeouts]:
    """Lets the class be made, and read, with the former names of its fields too."""
    make = cls.__init__

    def warn(former: str, level: int = 3) -> None:
        text = f"Timeouts.{former} is now called {_FORMER_NAMES[former]}"
        warnings.warn(text, DeprecationWarning, stacklevel=level)

    @functools.wraps(make)
    def init(self: Timeouts, *args: Any, **given: Any) -> None:
        for former in _FORMER_NAMES.keys() & given.keys():
            warn(former)
            given[_FORMER_NAMES[former]] = given.pop(former)
        make(self, *args, **given)

    def read(former: str) -> property:
        def get(self: Timeouts) -> Any:
            warn(former)
            return getattr(self, _FORMER_NAMES[former])

        return property(get)

    for former in _FORMER_NAMES:
        setattr(cls, former, read(former))
    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@_with_former_names
@dataclass(frozen=True)
class Timeouts:
    """Seconds, all of them; ``defaults`` says why they are what they are.

    Attributes:
        connect_timeout: for the first contact with the store.
        last_call: how long the first round waits for more than the minimum.
        join_timeout: how long a job waits for its minimum before it gives up.
        rejoin_timeout: how long a member of a broken round may take to return before it is left
            out, and a worker that is on its way into a round to say where it is.
        fence_timeout: how long silent members of a round are taken to be training still.
        lease_ttl: the lease asked for; the store may grant a longer one.
        grace: between SIGTERM and SIGKILL for a worker that is asked to end.
        broken_grace: the same for a worker whose group is broken already.
        kill_timeout: how long a killed worker may take to be gone.
        join_batch: how long the first joiner of a running job waits for others.
        probe_timeout: how long a probe of a node may take (``rendezvous.probe``).
        hang_timeout: how long no step may be committed in place, at least; 0: for ever.
    """

    connect_timeout: float = defaults.CONNECT_TIMEOUT
    last_call: float = defaults.LAST_CALL
    join_timeout: float = defaults.JOIN_TIMEOUT
    rejoin_timeout: float = defaults.REJOIN_TIMEOUT
    fence_timeout: float = defaults.FENCE_TIMEOUT
    lease_ttl: float = defaults.LEASE_TTL
    grace: float = defaults.GRACE
    broken_grace: float = defaults.BROKEN_GRACE
    kill_timeout: float = defaults.KILL_TIMEOUT
    join_batch: float = defaults.JOIN_BATCH
    probe_timeout: float = defaults.PROBE_TIMEOUT
    hang_timeout: float = defaults.HANG_TIMEOUT

    def __post_init__(self) -> None:
        """Refuses times that nothing can wait for.

        Raises:
            InvalidSetting: a time is negative, or 0 where there has to be some.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if value > LONGEST_TIME:
                why = f"no job waits so long; give {LONGEST_TIME:g} seconds or less"
                raise InvalidSetting(why, **{each.name: value})
            if each.name in MAY_BE_ZERO:
                if not value >= 0:  # also true of a value that is not a number (NaN)
                    why = "a time cannot be negative; give 0 or more seconds"
                    raise InvalidSetting(why, **{each.name: value})
            elif not value > 0:
                why = "nothing can happen in no time; give more than 0 seconds"
                raise InvalidSetting(why, **{each.name: value})

    @property
    def stop(self) -> float:
        """How long the workers of a node take to end, when it has to be quick."""
        return self.broken_grace + self.kill_timeout

    @property
    def lag(self) -> float:
        """After which a node certainly knows that its lease is lost: when its own clock says so, a
        write is under way that the store does not answer, and one more is tried."""
        return self.lease_ttl + 2 * STORE_TIMEOUT

    @property
    def shortest_fence(self) -> float:
        """The shortest ``fence_timeout`` with which no worker trains on when others stop waiting.

        All times count from the last heartbeat that the store has acknowledged: a node without the
        store keeps ``FENCE_RESERVE`` of the fence to stop its workers, or less if it knows of its
        loss only later; and they need ``stop`` to end.
        """
        return max(self.stop / FENCE_RESERVE, self.lag + self.stop)


@dataclass(frozen=True)
class Output:
    """Where the workers' output goes; the words are torchrun's.

    Attributes:
        log_dir: where logs are kept; None: nothing is written.
        redirects, tee: per local rank (or -1: all), 0 none, 1 stdout, 2 stderr, 3 both.
        ranks: local ranks shown on the console; None: all.
        stdout_filters, stderr_filters: lines of what is logged (and shown, as far as ``ranks``
            decides) that are also copied to a file of their own.
        prefix: a ``string.Template`` for the line prefix; "" means ``[${role_name}${rank}]:``.
        keep: of how many rounds logs are kept, on each node: the first and the newest; 0: of all.
    """

    log_dir: str | None = None
    redirects: dict[int, int] = field(default_factory=dict)
    tee: dict[int, int] = field(default_factory=dict)
    ranks: frozenset[int] | None = None
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    prefix: str = ""
    keep: int = defaults.KEEP_LOGS

    def shows(self, local_rank: int) -> bool:
        """Whether the output of this worker is to be shown."""
        return not self.ranks or local_rank in self.ranks


@dataclass(frozen=True)
class MemoryLimit:
    """How much memory something may take.

    Attributes:
        bytes: so many.
        share: or so much of the machine's memory, if this is above 0.
    """

    bytes: int = 0
    share: float = 0.0

    def within(self, total: int) -> int:
        """The limit in bytes, on a machine that has ``total`` bytes."""
        return int(total * self.share) if self.share else self.bytes


@dataclass(frozen=True)
class Siblings:
    """The nodes that one command has started, and which share its terminal.

    Attributes:
        names: of the nodes.
        report_token: the reading end of a pipe with one byte: the process that reads it prints the
            result for all of them.
    """

    names: tuple[str, ...]
    report_token: int


@dataclass(frozen=True)
class JobConfig:
    """All settings of one agent.

    Attributes:
        entry: what the workers run; ``launch`` puts its function here.
        endpoint: the rendezvous store. Without hosts, ``launch`` hosts one for this machine.
        run_id: names the job in the store; with a store of ``launch``'s own it may be left out.
        min_nodes, max_nodes: bounds of the world, in nodes.
        workers: workers on this node.
        min_workers: in place, how many of them are enough for the node to continue.
        node_unit: the world is kept a multiple of this many nodes.
        node_name: for people; "" means the host's name.
        node_life: which start of the node of this name it is; earlier ones, with lower numbers,
            have certainly ended. 0: not numbered.
        node_topology: where this node is in its network, in levels from far to near; none: not
            known.
        node_topology_file: has it as text, in time; "" means none does. It counts if
            ``node_topology`` says nothing.
        resuming: the job has run before: a store that shows nothing of it has lost its data.
        once: a run that has ended well is over for good: a node that comes to it later ends with 0.
        leave_code: what the agent ends with if its node was asked to leave.
        patient: a further signal does not hurry a node that leaves: whoever has sent it kills the
            node when its time is over.
        invocation: what all nodes that one command has started have in common; "": this is one.
        siblings: those nodes, this one among them; None: no other node shares its terminal.
        local_addr: address under which other nodes reach this one; "" means: find out.
        max_restarts: failures of user code that the whole job may have.
        timeouts: all time-outs.
        output: the workers' output.
        preload: modules that the fork server imports beyond those it finds by itself.
        cold: start every worker as a fresh process.
        regroup: in place, ``auto``, ``reconfigure`` (the same process groups get other peers) or
            ``rebuild`` (each round builds new ones).
        role: torch's role name.
        signals: names of the signals that end an agent.
        virtual_local_rank: torchrun's option of that name.
        numa_binding: torchrun's option of that name; "" means none.
        event_log_handler: torchrun's option of that name.
        snapshot_memory: how much of it snapshots of the training state may take on this node.
        health_port: torchrun's health check; 0 means none.
        metrics_port: where metrics and probes are served; 0 means nowhere.
        metrics_host: the address to serve them at.
        log_format: ``console``, ``json`` or ``auto``.
        log_file: takes every event as a line of JSON; "" means none does.
    """

    entry: Entry = Entry(FUNCTION, "")
    endpoint: Endpoint = Endpoint("c10d", ())
    run_id: str = ""
    min_nodes: int = defaults.MIN_NODES
    max_nodes: int = defaults.MIN_NODES
    workers: int = defaults.WORKERS
    min_workers: int = defaults.MIN_WORKERS
    node_unit: int = defaults.NODE_UNIT
    node_name: str = ""
    node_life: int = 0
    node_topology: tuple[str, ...] = ()
    node_topology_file: str = ""
    resuming: bool = False
    once: bool = False
    leave_code: int = defaults.LEAVE_CODE
    patient: bool = False
    invocation: str = ""
    siblings: Siblings | None = None
    local_addr: str = ""
    max_restarts: int = defaults.MAX_RESTARTS
    timeouts: Timeouts = field(default_factory=Timeouts)
    output: Output = field(default_factory=Output)
    preload: tuple[str, ...] = ()
    cold: bool = False
    regroup: str = defaults.REGROUP
    role: str = defaults.ROLE
    signals: tuple[str, ...] = defaults.SIGNALS
    virtual_local_rank: bool = False
    numa_binding: str = ""
    event_log_handler: str = "null"
    snapshot_memory: MemoryLimit = MemoryLimit(share=defaults.SNAPSHOT_MEMORY_SHARE)
    health_port: int = 0
    metrics_port: int = 0
    metrics_host: str = defaults.METRICS_HOST
    log_format: str = AUTO
    log_file: str = ""

    def __post_init__(self) -> None:
        """Refuses what no job can be run with; bounds of time-outs are in ``Timeouts``.

        Raises:
            InvalidSetting: a setting is out of bounds.
        """
        check_bounds(self.min_nodes, self.max_nodes)
        self._check_range("node_unit", 1, self.max_nodes, f"the maximum of {self.max_nodes} nodes")
        if self.workers < 1:
            raise InvalidSetting("a node runs at least one worker", workers=self.workers)
        self._check_range("min_workers", 1, self.workers, f"the {self.workers} workers of a node")
        for name in ("max_restarts", "node_life"):
            if getattr(self, name) < 0:
                raise InvalidSetting("it cannot be negative", **{name: getattr(self, name)})
        if why := topology_problem(self.node_topology):
            raise InvalidSetting(why, node_topology=topology_text(self.node_topology))
        for name in ("health_port", "metrics_port"):
            self._check_range(name, 0, LAST_PORT, str(LAST_PORT))
        self._check_fence()

    def _check_range(self, name: str, lowest: int, highest: int, end: str) -> None:
        value = getattr(self, name)
        if not lowest <= value <= highest:
            raise InvalidSetting(f"it must lie between {lowest} and {end}", **{name: value})

    def _check_fence(self) -> None:
        times = self.timeouts
        if times.fence_timeout >= times.shortest_fence:
            return
        raise InvalidSetting(
            "too short for a node that has lost the store: it stops its workers after "
            f"{1 - FENCE_RESERVE:.0%} of it, but knows of the loss only after {times.lag:g} s "
            f"(--lease-ttl {times.lease_ttl:g} s + 2 × {STORE_TIMEOUT:g} s for a write to fail), "
            f"and they need {times.stop:g} s to end; give {times.shortest_fence:g} s or more",
            fence_timeout=times.fence_timeout,
        )

    @property
    def settings(self) -> str:
        """Fingerprint of what all nodes of one job must agree on: the script and the world."""
        text = "\n".join(
            (
                PROTOCOL,
                self.entry.kind,
                self.entry.name,
                str(self.min_nodes),
                str(self.max_nodes),
                str(self.node_unit),
            )
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def with_(self, **changes: Any) -> JobConfig:
        """A copy with these fields changed."""
        return replace(self, **changes)
