"""The options of ``elastic-run``: the ones it adds, and how torchrun's are read.

torchrun's own options come from torch's parser when it runs (``cli.parser``), so that nothing is
missing here when torch adds one; this table only says which of their values are more than text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.flags import value_types
from elastic_runtime.config import LOOPBACK, MemoryLimit
from elastic_runtime.reporting.json_lines import AUTO, CONSOLE, JSON

if TYPE_CHECKING:
    from elastic_runtime.cli.flags.value_types import Kind


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        dest: its name in the environment (``PET_<DEST>``, ``ELASTIC_<DEST>``) and in the file.
        kind: what its value can be.
        default: the value if nothing says otherwise.
        flags: as typed; the first is the one shown in messages.
        group: title of its group in the help; "" for torchrun's.
        help: one or two lines.
        metavar: what stands for the value in the help.
        aliases: further names in the environment and in the file.
        from_file: may stand in the file.
    """

    dest: str
    kind: Kind
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
    flag: str, kind: Kind, group: str, metavar: str, text: str, default: Any = None, **more: Any
) -> Option:
    name = flag.removeprefix("--")
    dest = more.pop("dest", name.replace("-", "_"))
    spellings = dict.fromkeys((flag, "--" + name.replace("-", "_")))
    return Option(dest, kind, default, tuple(spellings), group, text, metavar, **more)


OURS: tuple[Option, ...] = (
    _ours("--min", value_types.WHOLE, JOB, "N", "fewest nodes that train (default: 1)"),
    _ours(
        "--max",
        value_types.WHOLE,
        JOB,
        "N",
        "most nodes that train; further ones are spares (default: --min, or --local-nodes). "
        "--min and --max are the readable form of --nnodes MIN:MAX",
    ),
    _ours("--node-unit", value_types.WHOLE, JOB, "N", "the world is a multiple of N nodes (1)", 1),
    _ours(
        "--min-workers",
        value_types.WHOLE,
        JOB,
        "N",
        "in place, a node goes on while it has so many workers (1)",
        1,
    ),
    _ours(
        "--local-nodes",
        value_types.WHOLE,
        JOB,
        "N",
        "start N nodes on this machine, each in its own process, for trying things out",
        1,
    ),
    _ours(
        "--node-name",
        value_types.NAME,
        JOB,
        "NAME",
        "name of this node, for people (the host's name)",
        "",
    ),
    _ours(
        "--node-life",
        value_types.WHOLE,
        JOB,
        "N",
        "for launchers that never run two nodes of one name: a number that grows with each start "
        "of it, so that earlier ones are known to be over (0: not numbered)",
        0,
    ),
    _ours(
        "--resuming",
        value_types.SWITCH,
        JOB,
        "",
        "the job has run before: if the store shows nothing of it, it has lost its memory; wait "
        "for the members to give it back (at most --fence-timeout) before a first round is formed",
        False,
    ),
    _ours(
        "--listen",
        value_types.TEXT,
        STORE,
        "ADDR[:PORT]",
        "without an endpoint: let other machines reach the embedded store, at this address of "
        "this machine; --listen alone means at every address",
    ),
    _ours("--etcd-user", value_types.TEXT, STORE, "NAME", "user of etcd's own authentication"),
    _ours(
        "--etcd-password-file",
        value_types.TEXT,
        STORE,
        "FILE",
        "file with that user's password (or the variable ELASTIC_ETCD_PASSWORD)",
    ),
    _ours(
        "--etcd-ca",
        value_types.TEXT,
        STORE,
        "FILE",
        "certificates that sign the server's, for etcds",
    ),
    _ours(
        "--etcd-cert",
        value_types.TEXT,
        STORE,
        "FILE",
        "our certificate, where the server asks for one",
    ),
    _ours("--etcd-key", value_types.TEXT, STORE, "FILE", "key of --etcd-cert"),
    _ours(
        "--last-call",
        value_types.SECONDS,
        TIMES,
        "TIME",
        "at the first start, how long to wait for more than --min nodes (3)",
    ),
    _ours(
        "--join-timeout",
        value_types.POSITIVE_SECONDS,
        TIMES,
        "TIME",
        "how long the job waits for --min nodes before it gives up (10m)",
    ),
    _ours(
        "--rejoin-timeout",
        value_types.POSITIVE_SECONDS,
        TIMES,
        "TIME",
        "how long a member of a broken round may take to come back (1m)",
    ),
    _ours(
        "--fence-timeout",
        value_types.POSITIVE_SECONDS,
        TIMES,
        "TIME",
        "how long nodes that fell silent are taken to be training still (10m; at least 10s)",
    ),
    _ours(
        "--lease-ttl",
        value_types.POSITIVE_SECONDS,
        TIMES,
        "TIME",
        "after how long a silent node counts as gone; the store may grant a longer one (5)",
    ),
    _ours(
        "--grace",
        value_types.SECONDS,
        TIMES,
        "TIME",
        "between SIGTERM and SIGKILL for a worker that is to end (30); "
        "--shutdown-timeout means the same",
    ),
    _ours(
        "--hang-timeout",
        value_types.SECONDS,
        TIMES,
        "TIME",
        "in place, how long a step may take, at least; three times as long as steps usually do if "
        "that is more; 0: for ever (30)",
    ),
    _ours(
        "--preload",
        value_types.WORDS,
        WORKERS,
        "MOD[,MOD…]",
        "modules that workers find imported, beyond those that the script imports at its top; "
        "may be given several times",
        (),
    ),
    _ours(
        "--cold",
        value_types.SWITCH,
        WORKERS,
        "",
        "start every worker as a fresh process (slower)",
        False,
    ),
    _ours(
        "--snapshot-memory",
        value_types.MEMORY,
        WORKERS,
        "SIZE",
        "how much memory snapshots of a Checkpointer may take on this node: 8GiB, 25%%; 0: none "
        "are taken (25%%)",
        MemoryLimit(share=0.25),
    ),
    _ours(
        "--keep-logs",
        value_types.COUNT,
        SHOWN,
        "N",
        "of how many rounds this node keeps its workers' logs: the first one and the newest; 0: of "
        "all (100)",
        100,
    ),
    _ours(
        "--log-format",
        value_types.choice(CONSOLE, JSON, AUTO),
        SHOWN,
        "FORMAT",
        "console: calm lines for people; json: one object a line; "
        "auto: console on a terminal (auto)",
        "auto",
    ),
    _ours(
        "--log-file",
        value_types.TEXT,
        SHOWN,
        "FILE",
        "append every event to this file as well, as a line of JSON, whatever the screen shows",
        "",
    ),
    _ours(
        "--metrics-port",
        value_types.PORT,
        SHOWN,
        "PORT",
        "serve /metrics, /status, /healthz and /readyz of this node's agent at this port; with "
        "--local-nodes, of node i at PORT + i; 0: nowhere (0)",
        0,
    ),
    _ours(
        "--metrics-host",
        value_types.TEXT,
        SHOWN,
        "ADDR",
        "the address to serve them at; 0.0.0.0, or :: for IPv6 as well, lets other machines ask "
        "(127.0.0.1)",
        LOOPBACK,
    ),
    _ours(
        "--config",
        value_types.TEXT,
        SHOWN,
        "FILE.toml",
        "settings, by the names of these options: max = 4, lease-ttl = '10s'",
        from_file=False,
    ),
)

# torchrun's options whose values are checked here rather than by argparse, so that a bad one is
# named by its source wherever it comes from. Everything else is text.
TORCHRUN_KINDS: dict[str, Kind] = {
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
    "max_restarts": "failures of the script that the whole job may have (3; torchrun: 0). A killed "
    "worker, a lost node and a resize cost nothing.",
    "rdzv_backend": "etcd (or etcd-v3), c10d; torch's own: static, etcd-v2. Not needed with an "
    "endpoint such as etcd://host.",
    "rdzv_endpoint": "etcd://h1:2379,h2:2379/prefix, etcds://… (TLS), c10d://host:port, or "
    "host:port with --rdzv-backend. Without one, the store is embedded.",
    "rdzv_id": "name of the run, the same on all its nodes; --run-id means the same.",
    "standalone": "no endpoint: the store is embedded (which is the default).",
}

TORCHRUN_DEFAULTS: dict[str, Any] = {"max_restarts": 3}
