"""The options of ``elastic-run``: the ones it adds, and how torchrun's are read.

torchrun's own options come from torch's parser when it runs (``flag_parser``), so that nothing is
missing here when torch adds one; this table only says which of their values are more than text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime import defaults
from elastic_runtime.cli.flags import value_types
from elastic_runtime.config import MemoryLimit, Timeouts
from elastic_runtime.limits import TOPOLOGY_FILE_TIMEOUT
from elastic_runtime.reporting.json_lines import AUTO, CONSOLE, JSON
from elastic_runtime.system.torch_version import REBUILD, RECONFIGURE

if TYPE_CHECKING:
    from elastic_runtime.cli.flags.value_types import ValueType


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        dest: its name in the environment (``PET_<DEST>``, ``ELASTIC_<DEST>``) and in the file.
        value_type: what its value can be.
        default: the value if nothing says otherwise.
        flags: as typed; the first is the one shown in messages. (): only launchers say it, in the
            environment.
        group: title of its group in the help; "" for torchrun's.
        help: one or two lines.
        metavar: what stands for the value in the help.
        aliases: further names in the environment and in the file.
        from_file: may stand in the file.
    """

    dest: str
    value_type: ValueType
    default: Any = None
    flags: tuple[str, ...] = ()
    group: str = ""
    help: str = ""
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    from_file: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, the proper one first."""
        return (self.dest, *self.aliases)


JOB = "the job"
STORE = "the store"
TIMES = "time-outs (seconds, or 500ms, 30s, 10m, 1h)"
WORKERS = "the workers"
SHOWN = "settings and output"


def _ours(
    flag: str,
    value_type: ValueType,
    group: str,
    metavar: str,
    text: str,
    default: Any = None,
    **more: Any,
) -> Option:
    name = flag.removeprefix("--")
    dest = more.pop("dest", name.replace("-", "_"))
    spellings = dict.fromkeys((flag, "--" + name.replace("-", "_")))
    return Option(dest, value_type, default, tuple(spellings), group, text, metavar, **more)


def _time(seconds: float) -> str:
    """As people type it: 600 seconds are 10m."""
    return f"{seconds / 60:g}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g}s"


_SHARE = f"{defaults.SNAPSHOT_MEMORY_SHARE * 100:g}%%"  # argparse takes %% for %

# What a launcher knows of the nodes that it starts, and nobody types.
_OF_LAUNCHERS = (
    Option("node_life", value_types.WHOLE, 0, from_file=False),
    Option("once", value_types.SWITCH, default=False, from_file=False),
    Option("patient", value_types.SWITCH, default=False, from_file=False),
)

OURS: tuple[Option, ...] = (
    *_OF_LAUNCHERS,
    _ours(
        "--min",
        value_types.WHOLE,
        JOB,
        "N",
        f"fewest nodes that train (default: {defaults.MIN_NODES})",
    ),
    _ours(
        "--max",
        value_types.WHOLE,
        JOB,
        "N",
        "most nodes that train; further ones are spares (default: --min, or --local-nodes). "
        "--min and --max are the readable form of --nnodes MIN:MAX",
    ),
    _ours(
        "--node-unit",
        value_types.WHOLE,
        JOB,
        "N",
        f"the number of nodes that train is a multiple of N (default: {defaults.NODE_UNIT})",
        defaults.NODE_UNIT,
    ),
    _ours(
        "--min-workers",
        value_types.WHOLE,
        JOB,
        "N",
        "with elastic.run: a node continues training while it has at least N workers "
        f"(default: {defaults.MIN_WORKERS})",
        defaults.MIN_WORKERS,
    ),
    _ours(
        "--local-nodes",
        value_types.WHOLE,
        JOB,
        "N",
        "start N nodes on this machine, each in its own process, to try things out (default: 1)",
        1,
    ),
    _ours(
        "--hosts",
        value_types.TEXT,
        JOB,
        "FILE",
        "run a node on each host that FILE lists (one in a line; name, name:4 or name slots=4: 4 "
        "workers), over ssh; hosts that appear there later join, and those that vanish leave",
        "",
    ),
    _ours(
        "--discover",
        value_types.TEXT,
        JOB,
        "PROGRAM",
        "the same, with a PROGRAM that prints the list; it is asked every second",
        "",
    ),
    _ours(
        "--ssh",
        value_types.TEXT,
        JOB,
        "COMMAND",
        'OpenSSH\'s client with options of yours, such as "ssh -p 2222" (default: ssh)',
        "ssh",
    ),
    _ours(
        "--node-name",
        value_types.NAME,
        JOB,
        "NAME",
        "name of this node, shown to people (default: the name of the host)",
        "",
    ),
    _ours(
        "--node-topology",
        value_types.TOPOLOGY,
        JOB,
        "A/B/C",
        "where this node is in its network, from far to near, such as zone/block/rack: nodes that "
        "are near each other get neighbouring ranks, and copies of snapshots go far away",
        (),
    ),
    _ours(
        "--node-topology-file",
        value_types.TEXT,
        JOB,
        "FILE",
        "a file with one line that says the same, or - if nothing is known; it is waited for, "
        f"{_time(TOPOLOGY_FILE_TIMEOUT)} at most",
        "",
    ),
    _ours(
        "--resuming",
        value_types.SWITCH,
        JOB,
        "",
        "the job has run before: if the store holds no records of it, the store has lost them; "
        "wait for its members to write them again (at most --fence-timeout) before a new first "
        "round is formed",
        False,
    ),
    _ours(
        "--slurm",
        value_types.choice("auto", "job", "array", "off"),
        JOB,
        "HOW",
        "under Slurm, run id, node name, bounds and store come from the job: job: its nodes are "
        "those of the step; array: its elements are the nodes of one job; off: nothing does; auto: "
        "job, where srun or sbatch has started this (default: auto)",
        "auto",
    ),
    _ours(
        "--leave-code",
        value_types.COUNT,
        JOB,
        "N",
        "exit code of a node that was asked to leave, for launchers that start it again by its "
        f"code (default: {defaults.LEAVE_CODE})",
        defaults.LEAVE_CODE,
    ),
    _ours(
        "--requeue",
        value_types.SWITCH,
        JOB,
        "",
        "under Slurm, in a batch script: a job that was asked to leave, by preemption or by "
        "--signal, is queued again; with --slurm=array, this element of it",
        False,
    ),
    _ours(
        "--listen",
        value_types.TEXT,
        STORE,
        "ADDR[:PORT]",
        "without an endpoint: other machines can reach the embedded store at this address of "
        "this machine; --listen without a value means all its addresses",
    ),
    _ours("--etcd-user", value_types.TEXT, STORE, "NAME", "user name, if etcd asks for one"),
    _ours(
        "--etcd-password-file",
        value_types.TEXT,
        STORE,
        "FILE",
        "file with the password of that user (or set the variable ELASTIC_ETCD_PASSWORD)",
    ),
    _ours(
        "--etcd-ca",
        value_types.TEXT,
        STORE,
        "FILE",
        "CA certificates to verify the server with (TLS)",
    ),
    _ours(
        "--etcd-cert",
        value_types.TEXT,
        STORE,
        "FILE",
        "client certificate, if the server asks for one (TLS)",
    ),
    _ours("--etcd-key", value_types.TEXT, STORE, "FILE", "private key of --etcd-cert"),
    _ours(
        "--last-call",
        value_types.SECONDS,
        TIMES,
        "TIME",
        f"at the first start: how long to wait for more nodes once there are --min "
        f"(default: {_time(defaults.LAST_CALL)})",
    ),
    _ours(
        "--join-timeout",
        value_types.POSITIVE_SECONDS,
        TIMES,
        "TIME",
        f"how long the job waits for --min nodes before it gives up "
        f"(default: {_time(defaults.JOIN_TIMEOUT)})",
    ),
    _ours(
        "--rejoin-timeout",
        value_types.POSITIVE_SECONDS,
        TIMES,
        "TIME",
        "how long the others wait for a node to come back after a failure, before they continue "
        f"without it (default: {_time(defaults.REJOIN_TIMEOUT)})",
    ),
    _ours(
        "--fence-timeout",
        value_types.POSITIVE_SECONDS,
        TIMES,
        "TIME",
        "how long nodes that cannot be reached are assumed to be still training (default: "
        f"{_time(defaults.FENCE_TIMEOUT)}; at least {_time(Timeouts().shortest_fence)} with the "
        "default --lease-ttl)",
    ),
    _ours(
        "--lease-ttl",
        value_types.POSITIVE_SECONDS,
        TIMES,
        "TIME",
        "a node without a keep-alive for this time counts as lost; the store may grant more "
        f"(default: {_time(defaults.LEASE_TTL)})",
    ),
    _ours(
        "--grace",
        value_types.SECONDS,
        TIMES,
        "TIME",
        "time between SIGTERM and SIGKILL for a worker that has to end (default: "
        f"{_time(defaults.GRACE)}); --shutdown-timeout means the same",
    ),
    _ours(
        "--hang-timeout",
        value_types.SECONDS,
        TIMES,
        "TIME",
        "with elastic.run: a step that takes longer than this, and than three times a usual step, "
        f"counts as a hang; 0: never (default: {_time(defaults.HANG_TIMEOUT)})",
    ),
    _ours(
        "--preload",
        value_types.WORDS,
        WORKERS,
        "MOD[,MOD…]",
        "modules to import before a worker starts, beside those that the script imports at its "
        "top; may be given several times",
        (),
    ),
    _ours(
        "--cold",
        value_types.SWITCH,
        WORKERS,
        "",
        "start every worker as a new Python process, not as a fork of a prepared one (slower)",
        False,
    ),
    _ours(
        "--accelerate-config",
        value_types.TEXT,
        WORKERS,
        "FILE",
        "settings for accelerate, as accelerate config writes them; default: those that it has "
        "written for this user; none: none, and no hint that there are some",
        "",
    ),
    _ours(
        "--regroup",
        value_types.choice(AUTO, RECONFIGURE, REBUILD),
        WORKERS,
        "HOW",
        "with elastic.run, how ranks come from one world to the next: reconfigure: the same "
        "process groups get other peers (torch 2.15 and newer); rebuild: new ones are built; auto: "
        f"reconfigure where torch can, without GPUs (default: {defaults.REGROUP})",
        defaults.REGROUP,
    ),
    _ours(
        "--snapshot-memory",
        value_types.MEMORY,
        WORKERS,
        "SIZE",
        "how much memory of this node snapshots may use: 8GiB, 25%%; 0: no "
        f"snapshots (default: {_SHARE})",
        MemoryLimit(share=defaults.SNAPSHOT_MEMORY_SHARE),
    ),
    _ours(
        "--keep-logs",
        value_types.COUNT,
        SHOWN,
        "N",
        "number of rounds whose worker logs this node keeps: the first one and the newest; 0: all "
        f"(default: {defaults.KEEP_LOGS})",
        defaults.KEEP_LOGS,
    ),
    _ours(
        "--log-format",
        value_types.choice(CONSOLE, JSON, AUTO),
        SHOWN,
        "FORMAT",
        "console: lines for people; json: one JSON object a line; "
        "auto: console on a terminal, json elsewhere (default: auto)",
        AUTO,
    ),
    _ours(
        "--log-file",
        value_types.TEXT,
        SHOWN,
        "FILE",
        "also append every event to this file, as a line of JSON, whatever --log-format says",
        "",
    ),
    _ours(
        "--metrics-port",
        value_types.PORT,
        SHOWN,
        "PORT",
        "serve /metrics, /status, /healthz and /readyz of this node's agent at this port; with "
        "--local-nodes, node i uses PORT + i; 0: do not serve them (default: 0)",
        0,
    ),
    _ours(
        "--metrics-host",
        value_types.TEXT,
        SHOWN,
        "ADDR",
        "the address to serve them at; 0.0.0.0, or :: for IPv6 as well, lets other machines read "
        f"them (default: {defaults.METRICS_HOST})",
        defaults.METRICS_HOST,
    ),
    _ours(
        "--config",
        value_types.TEXT,
        SHOWN,
        "FILE.toml",
        "file with settings, named as these options: max = 4, lease-ttl = '10s'",
        from_file=False,
    ),
)

# torchrun's options whose values are checked here rather than by argparse, so that a bad one is
# named by its source wherever it comes from. Everything else is text.
TORCHRUN_TYPES: dict[str, ValueType] = {
    "nnodes": value_types.NODES,
    "nproc_per_node": value_types.WORKERS,
    "rdzv_conf": value_types.PAIRS,
    "rdzv_id": value_types.NAME,
    "redirects": value_types.STREAMS,
    "tee": value_types.STREAMS,
    "local_ranks_filter": value_types.RANKS,
    "duplicate_stdout_filters": value_types.FILTERS,
    "duplicate_stderr_filters": value_types.FILTERS,
    "signals_to_handle": value_types.SIGNALS,
    "shutdown_timeout": value_types.SECONDS,
}

TORCHRUN_ALIASES: dict[str, tuple[str, ...]] = {"rdzv_id": ("run_id",)}

# What torchrun's option means here where that differs from torch's own help.
TORCHRUN_HELP: dict[str, str] = {
    "max_restarts": "how many failures of the script the whole job may have (default: "
    f"{defaults.MAX_RESTARTS}; torchrun: 0). A killed worker, a lost node and a resize "
    "do not count.",
    "rdzv_backend": "etcd (or etcd-v3), c10d; torch's own: static, etcd-v2. Not needed with an "
    "endpoint such as etcd://host.",
    "rdzv_endpoint": "etcd://h1:2379,h2:2379/prefix, etcds://… (TLS), c10d://host:port, or "
    "host:port with --rdzv-backend. Without one, this process hosts the store.",
    "rdzv_id": "name of the run, the same on all its nodes; --run-id means the same.",
    "standalone": "no endpoint: this process hosts the store (which is the default).",
}

TORCHRUN_DEFAULTS: dict[str, Any] = {"max_restarts": defaults.MAX_RESTARTS}
