"""What plain torchrun needs to use our rendezvous: ``torchrun --rdzv-backend=etcd-v3 …``.

torch imports this module in every process that imports its elastic part, so nothing that it does
not need is imported before a handler is asked for.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from elastic_runtime import defaults
from elastic_runtime.config import (
    COMMAND,
    PROTOCOL,
    RDZV_CONF_TIMEOUTS,
    Endpoint,
    Entry,
    InvalidSetting,
    JobConfig,
    Timeouts,
    Tls,
)
from elastic_runtime.durations import parse_duration
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters

ETCD_V3 = "etcd-v3"
C10D = "elastic-c10d"

_DEFAULT_PORTS = {ETCD_V3: defaults.ETCD_PORT, C10D: defaults.C10D_PORT}

# torch itself puts this key into every configuration (900 s), so it is not a user's.
_SET_BY_TORCH = "timeout"


def etcd_v3_entry_point() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """For ``torchrun.handlers``: the rendezvous on etcd's v3 API."""
    return _etcd_v3


def c10d_entry_point() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """For ``torchrun.handlers``: the rendezvous on a store that the job hosts itself."""
    return _c10d


# torch asks for the creator each time that it registers, and takes no other one the second time.
def _etcd_v3(params: RendezvousParameters) -> RendezvousHandler:
    return create_handler(ETCD_V3, params)


def _c10d(params: RendezvousParameters) -> RendezvousHandler:
    return create_handler(C10D, params)


def create_handler(name: str, params: RendezvousParameters) -> RendezvousHandler:
    """Makes a handler from torchrun's parameters; connects to nothing yet.

    Args:
        name: ``etcd-v3`` or ``elastic-c10d``.
        params: with these options in ``--rdzv-conf``: those of ``RDZV_CONF_TIMEOUTS`` but for
            ``timeout`` (seconds); for etcd ``prefix``, ``protocol`` (http or https), ``ca_cert``,
            ``ssl_cert``, ``ssl_cert_key``, ``user``, ``password``; for c10d ``is_host``.

    Raises:
        UsageError: an option or the endpoint is wrong.
    """
    from elastic_runtime.rendezvous.node_address import own_address
    from elastic_runtime.rendezvous.participant import NodeIdentity
    from elastic_runtime.rendezvous.policy import Policy
    from elastic_runtime.rendezvous.stores.open_store import open_store
    from elastic_runtime.rendezvous.torchrun.torch_handler import ElasticRendezvousHandler

    endpoint = endpoint_of(name, params)
    times = times_of(params)
    config = JobConfig(
        Entry(COMMAND, "torchrun"),
        endpoint,
        params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        timeouts=times,
    )
    identity = NodeIdentity(
        name=f"{socket.gethostname()}-{os.getpid()}",
        address=own_address(params.local_addr or "", endpoint),
        workers=1,
        settings=f"torchrun {PROTOCOL} {params.min_nodes}:{params.max_nodes}",
    )
    connect = times.connect_timeout
    store = open_store(endpoint, params.run_id, times.lease_ttl, connect, identity.address)
    return ElasticRendezvousHandler(name, params.run_id, store, Policy.of(config), identity)


def endpoint_of(name: str, params: RendezvousParameters) -> Endpoint:
    """The store that ``--rdzv-endpoint`` and ``--rdzv-conf`` name.

    Raises:
        UsageError: they do not name one.
    """
    hosts = tuple(_host(name, part.strip()) for part in params.endpoint.split(",") if part.strip())
    if name == C10D:
        if len(hosts) != 1:
            raise UsageError(
                f"--rdzv-endpoint {params.endpoint!r}: {C10D} needs one host, as host:port"
            )
        return Endpoint("c10d", hosts, hosted_here=params.get_as_bool("is_host") is False)
    if not hosts:
        raise UsageError(f"--rdzv-endpoint is missing: {name} needs host:port of an etcd server")
    return Endpoint(
        "etcd",
        hosts,
        prefix=str(params.get("prefix", defaults.PREFIX)).strip("/"),
        secure=params.get("protocol", "http") == "https",
        tls=Tls(
            str(params.get("ca_cert", "")),
            str(params.get("ssl_cert", "")),
            str(params.get("ssl_cert_key", "")),
        ),
        user=str(params.get("user", "")),
        password=str(params.get("password", "")),
    )


def times_of(params: RendezvousParameters) -> Timeouts:
    """The time-outs in ``--rdzv-conf``.

    Raises:
        UsageError: one is not a number of seconds, or out of its bounds.
    """
    given: dict[str, Any] = {}
    said: dict[str, str] = {}
    for option, field in RDZV_CONF_TIMEOUTS.items():
        text = params.get(option)
        if text is None or option == _SET_BY_TORCH:
            continue
        said[field] = f"--rdzv-conf {option}={text}"
        try:
            given[field] = parse_duration(str(text), unit="s")
        except ValueError:
            what = "a number of seconds (such as 2, 1.5, 30s or 10m)"
            raise UsageError(f"{said[field]}: it must be {what}") from None
    try:
        return Timeouts(**given)
    except InvalidSetting as error:
        (name,) = error.values
        raise UsageError(f"{said[name]}: {error.why}") from None


def _host(name: str, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # a bare name or IPv6 address
        return f"{text}:{_DEFAULT_PORTS[name]}"
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--rdzv-endpoint {text!r}: it must be host:port")
    return text
