"""Which store a command line means: a given one, an embedded one, or torchrun's own launcher."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.cli.flags.setting_sources import Level
from elastic_runtime.config import LOOPBACK, Endpoint
from elastic_runtime.endpoint import C10D, parse_endpoint, split_address
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from elastic_runtime.cli.flags.node_bounds import Bounds
    from elastic_runtime.cli.flags.setting_sources import Settings
    from elastic_runtime.endpoint import EtcdCredentials

# Rendezvous of torch's that know no membership: torch's launcher runs them as it always did.
_TORCHS_OWN = ("static", "etcd-v2")
_STATIC_ONLY = ("master_addr", "master_port", "node_rank")
_TORCHRUNS_ID = "none"
# Bytes; the name is a directory among the logs, and a part of each key and of many messages.
_LONGEST_ID = 200


@dataclass(frozen=True)
class EmbeddedTarget:
    """A store that this process is to host.

    Attributes:
        host: the address to listen at; "" means every one.
        port: 0 means any free one.
        only_there: another port will not do, should this one be taken.
    """

    host: str = LOOPBACK
    port: int = 0
    only_there: bool = True


@dataclass(frozen=True)
class TorchrunTarget:
    """Torch's own launcher is to run the job, with this rendezvous backend."""

    backend: str


StoreTarget = Endpoint | EmbeddedTarget | TorchrunTarget


def choose_store(settings: Settings, bounds: Bounds, credentials: EtcdCredentials) -> StoreTarget:
    """Decides where the nodes of the job meet.

    Raises:
        UsageError: the endpoint, the backend or ``--listen`` is wrong.
    """
    backend = settings["rdzv_backend"] if settings.given("rdzv_backend") else ""
    text = settings["rdzv_endpoint"] or ""
    if settings["standalone"]:
        return _embedded(settings)
    if backend in _TORCHS_OWN or _looks_static(settings, backend, text, bounds):
        return TorchrunTarget(backend or "static")
    if not text and (not backend or (backend == C10D and bounds.high == 1)):
        return _embedded(settings)
    if not text:
        text = "localhost"  # torch's default for both backends
    endpoint = parse_endpoint(text, backend, credentials)
    host, _, port = endpoint.hosts[0].rpartition(":")
    if port == "0":
        return EmbeddedTarget(LOOPBACK if host == "localhost" else host.strip("[]"))
    if settings.given("listen"):
        raise UsageError(
            f"{settings.of('listen')} is for the embedded store, but {settings.of('rdzv_endpoint')}"
            " names another one: drop one of them"
        )
    return endpoint


def _looks_static(settings: Settings, backend: str, text: str, bounds: Bounds) -> bool:
    """Whether torchrun would take this for its static rendezvous, and nothing speaks against it."""
    if backend or "://" in text or not any(settings.given(dest) for dest in _STATIC_ONLY):
        return False
    ours = settings.given("min") or settings.given("max")
    return bounds.low == bounds.high > 1 and not ours


def _embedded(settings: Settings) -> EmbeddedTarget:
    if not settings.given("listen"):
        return EmbeddedTarget()
    asked = settings.of("listen")
    host, port = split_address(asked.value, str(asked))
    return EmbeddedTarget(host, port, only_there=asked.level > Level.PLACE)


def choose_run_id(settings: Settings, target: StoreTarget) -> str:
    """The name of the run: the given one; a new one for an embedded store.

    A c10d store is hosted by the nodes of one job, so torchrun's nameless default does there. An
    etcd is shared by many jobs: without a name, two of them would mix.

    Raises:
        UsageError: a shared store and no name, or a name that is no key.
    """
    given = settings.of("rdzv_id")
    if given.given:
        run_id = str(given.value)
        source = "--run-id" if given.level is Level.FLAG else given.source
        if len(run_id.encode()) > _LONGEST_ID:
            raise UsageError(
                f"{source}={run_id[:20]!r}… is {len(run_id)} characters long: {_LONGEST_ID} bytes "
                "are the most that a run's name may have"
            )
        if not re.fullmatch(r"[^\s/\x00-\x1f]+", run_id):
            why = "it has a slash or a space" if run_id else "it is empty"
            raise UsageError(f"{source}={run_id!r} is no name for a run: {why}")
        return run_id
    if isinstance(target, EmbeddedTarget):
        return f"run-{secrets.token_hex(4)}"
    if isinstance(target, Endpoint) and target.backend != C10D:
        raise UsageError(
            f"{target} is shared by many jobs: name this one with --run-id, the same on all nodes"
        )
    return _TORCHRUNS_ID


def embedded_endpoint(host: str, port: int) -> Endpoint:
    """The endpoint of a store that is embedded here."""
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(backend=C10D, hosts=(f"{shown}:{port}",), hosted_here=True)
