"""``python -m elastic_runtime.controller``: the controller of ElasticJobs."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import sys
import uuid
from typing import TYPE_CHECKING

from elastic_runtime.controller.decide.etcd_manifests import ETCD_IMAGE
from elastic_runtime.controller.spec.topology_spec import MOST_LEVELS, are_node_labels
from elastic_runtime.errors import ElasticError
from elastic_runtime.events.controller_events import ControllerFailed
from elastic_runtime.kubernetes.cluster_access import need
from elastic_runtime.limits import CONTROLLER_LEASE
from elastic_runtime.reporting.json_lines import AUTO, CONSOLE, JSON
from elastic_runtime.reporting.log import make_emit

if TYPE_CHECKING:
    from elastic_runtime.events import Emit

_LONGEST_LEASE = 3600


def main(argv: list[str] | None = None) -> int:
    """Runs the controller until it is asked to end.

    Args:
        argv: the arguments; those of the process if not given.

    Returns:
        The exit code: 0 after SIGTERM or SIGINT, that of the error otherwise.
    """
    args = _parser().parse_args(argv)
    emit = make_emit(args.log_format, sys.stdout)
    try:
        need("aiohttp")
        asyncio.run(_run(args, emit))
    except ElasticError as error:
        emit(ControllerFailed(str(error)))
        print(f"elastic-controller: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


async def _run(args: argparse.Namespace, emit: Emit) -> None:
    # They import aiohttp; where it is missing, ``main`` says so.
    from elastic_runtime.controller.service import Controller, ControllerSettings
    from elastic_runtime.kubernetes.leader_lease import LeaseTimings

    settings = ControllerSettings(
        identity=f"{os.environ.get('POD_NAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}",
        home=os.environ.get("POD_NAMESPACE", ""),
        namespace=args.namespace,
        port=args.liveness_port,
        etcd_image=args.etcd_image or ETCD_IMAGE,
        topology_labels=args.topology_labels,
        timings=LeaseTimings(args.lease_seconds),
    )
    await Controller(settings, emit).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="elastic-controller",
        description="Looks after the ElasticJobs of a cluster, or of one namespace.",
    )
    add = parser.add_argument
    add(
        "--namespace",
        type=_namespace,
        default="",
        help="look after the jobs of this namespace only (all)",
    )
    add("--liveness-port", type=_port, default=8080, help="/healthz, /readyz, /metrics (8080)")
    add(
        "--etcd-image",
        default=os.environ.get("ELASTIC_ETCD_IMAGE") or ETCD_IMAGE,
        help="what runs for jobs that name no etcd; also ELASTIC_ETCD_IMAGE (%(default)s)",
    )
    add(
        "--topology-labels",
        type=_labels,
        default=os.environ.get("ELASTIC_TOPOLOGY_LABELS", ""),
        metavar="FAR,…,NEAR",
        help="labels of nodes by which ranks are ordered, such as zone, block and rack: pods are "
        "told them. It needs the rights to get nodes and to patch pods; also "
        "ELASTIC_TOPOLOGY_LABELS (none)",
    )
    add(
        "--lease-seconds",
        type=_seconds,
        default=CONTROLLER_LEASE,
        help="after so long without a sign of the leader another controller leads (15)",
    )
    add("--log-format", choices=(AUTO, CONSOLE, JSON), default=AUTO, help="of stdout (auto)")
    return parser


def _namespace(text: str) -> str:
    if text and not re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a namespace")
    return text


def _labels(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    if not are_node_labels(names):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of at most {MOST_LEVELS} keys of labels, with commas between them"
        )
    return names


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535)")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= _LONGEST_LEASE:  # a Lease says whole seconds
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds from 1 to {_LONGEST_LEASE}"
        )
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
