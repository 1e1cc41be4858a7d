"""Where the store is, as people write it. Free of torch: ``elasticctl`` reads endpoints too.

Two spellings: one URL (``etcd://h1:2379,h2:2379/prefix``, ``etcds://…`` with TLS,
``c10d://host:port``), and torchrun's pair ``--rdzv-backend c10d --rdzv-endpoint host:port``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime import defaults
from elastic_runtime.config import Endpoint, Tls
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

ETCD = "etcd"
C10D = "c10d"
DEFAULT_PORTS = {ETCD: defaults.ETCD_PORT, C10D: defaults.C10D_PORT}
PASSWORD_VARIABLE = "ELASTIC_ETCD_PASSWORD"

_BACKENDS = {"etcd": ETCD, "etcd-v3": ETCD, "c10d": C10D, "elastic-c10d": C10D}
_SCHEMES = {"etcd": ETCD, "etcds": ETCD, "etcd-v3": ETCD, "c10d": C10D}
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\.?")
_ONE_SLASH = re.compile(rf"(?P<scheme>{'|'.join(_SCHEMES)}):/(?P<rest>[^/].*)")
_FORMS = "etcd://host:port/prefix, etcds://… or c10d://host:port"


@dataclass(frozen=True)
class EtcdCredentials:
    """How to log in to etcd, from options of their own.

    Attributes:
        user: a user name; the endpoint may name one as well.
        password: never part of an endpoint's text.
        tls: paths of certificates and key.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    tls: Tls = field(default_factory=Tls)


def parse_endpoint(
    text: str, backend: str = "", credentials: EtcdCredentials | None = None
) -> Endpoint:
    """Reads an endpoint.

    Args:
        text: an URL, or ``host:port`` with ``backend``; hosts are separated by commas (etcd).
        backend: torchrun's ``--rdzv-backend``; "" if not given.
        credentials: user, password and TLS files.

    Raises:
        UsageError: it is no endpoint, the backend says something else, or it holds a password.
    """
    credentials = credentials or EtcdCredentials()
    scheme, separator, rest = text.partition("://")
    if separator:
        found = _of_scheme(text, scheme)
        if backend and _of_backend(backend) != found:
            raise UsageError(
                f"--rdzv-backend is {backend}, but the endpoint {_shown(text)!r} says {scheme}: "
                "leave one out"
            )
    else:
        scheme, rest = "", text
        if slip := _ONE_SLASH.fullmatch(text):
            meant = f"{slip['scheme']}://{slip['rest']}"
            raise UsageError(
                f"the endpoint {_shown(text)!r} lacks a slash: write {_shown(meant)!r}"
            )
        if not backend:
            raise UsageError(
                f"the endpoint {_shown(text)!r} does not say what it is: "
                f"write c10d://{_shown(text)} or etcd://{_shown(text)}, or name a --rdzv-backend"
            )
        found = _of_backend(backend)
    user, rest = _without_user(text, rest)
    authority, _, path = rest.partition("/")
    hosts = tuple(_host(text, part, DEFAULT_PORTS[found]) for part in authority.split(","))
    _check_shape(text, found, hosts, path, user)
    endpoint = Endpoint(backend=found, hosts=hosts)
    return endpoint if found == C10D else _etcd(endpoint, text, path, user, credentials)


def _etcd(
    endpoint: Endpoint, text: str, path: str, user: str, credentials: EtcdCredentials
) -> Endpoint:
    scheme = text.partition("://")[0] if "://" in text else ""
    if user and credentials.user and user != credentials.user:
        raise UsageError(
            f"the endpoint names the user {user!r}, --etcd-user {credentials.user!r}: keep one"
        )
    user = user or credentials.user
    if credentials.password and not user:
        raise UsageError(
            f"there is a password for etcd ({PASSWORD_VARIABLE} or --etcd-password-file), but no "
            "user: add --etcd-user"
        )
    tls = credentials.tls
    if bool(tls.cert) != bool(tls.key):
        raise UsageError("--etcd-cert and --etcd-key belong together: give both")
    for flag, path_ in (("--etcd-ca", tls.ca), ("--etcd-cert", tls.cert), ("--etcd-key", tls.key)):
        if path_ and not Path(path_).is_file():
            raise UsageError(f"{flag}: there is no file {path_!r}")
    secure = scheme == "etcds" or tls != Tls()
    if scheme == "etcd" and secure:
        raise UsageError(
            "etcd:// is without TLS, but a certificate was given: write etcds://, or drop --etcd-ca"
            " and --etcd-cert"
        )
    return Endpoint(
        backend=ETCD,
        hosts=endpoint.hosts,
        prefix=_prefix(text, path),
        secure=secure,
        tls=tls,
        user=user,
        password=credentials.password,
    )


def _prefix(text: str, path: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.~/-]*", path):
        raise UsageError(
            f"the prefix {path!r} in the endpoint {_shown(text)!r} can hold letters, digits, "
            "slashes and _.~- only"
        )
    return "/".join(part for part in path.split("/") if part) or Endpoint.prefix


def _of_scheme(text: str, scheme: str) -> str:
    if scheme not in _SCHEMES:
        raise UsageError(f"unknown kind of store in the endpoint {_shown(text)!r}: write {_FORMS}")
    return _SCHEMES[scheme]


def _of_backend(backend: str) -> str:
    if backend not in _BACKENDS:
        raise UsageError(
            f"--rdzv-backend {backend!r} is not known: use etcd, c10d, or torch's static, etcd-v2"
        )
    return _BACKENDS[backend]


def _without_user(text: str, rest: str) -> tuple[str, str]:
    # Before anything else is split: a password may hold a slash, and must not show up in an error.
    user, at, hosts = rest.rpartition("@")
    if not at:
        return "", rest
    if ":" in user:
        raise UsageError(
            f"the endpoint {_shown(text)!r} holds a password, which everyone on the machine could "
            f"read: leave it out, and set {PASSWORD_VARIABLE} or --etcd-password-file"
        )
    if not user:
        raise UsageError(f"the endpoint {_shown(text)!r} has an @ without a user before it")
    return user, hosts


def _host(text: str, part: str, default_port: int) -> str:
    match = re.fullmatch(r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]*))(:(?P<port>.*))?", part)
    if not match or not (match["v6"] or _NAME.fullmatch(match["name"] or "")):
        why = "an IPv6 address goes in brackets" if part.count(":") > 1 else "host:port is expected"
        raise UsageError(f"{part!r} in the endpoint {_shown(text)!r} is no host: {why}")
    try:
        (match["name"] or "").encode("idna")  # as it is looked up
    except UnicodeError as error:
        raise UsageError(
            f"{part!r} in the endpoint {_shown(text)!r} is no host: {error.__cause__ or error}"
        ) from None
    port = match["port"]
    if port is None:
        port = str(default_port)
    # torchrun's c10d://localhost:0 means a store of one's own, on any free port.
    lowest = 0 if default_port == DEFAULT_PORTS[C10D] else 1
    if not re.fullmatch(r"[0-9]{1,5}", port) or not lowest <= int(port) < 65536:
        raise UsageError(f"{port!r} in the endpoint {_shown(text)!r} is no port ({lowest}-65535)")
    host = f"[{match['v6']}]" if match["v6"] else match["name"]
    return f"{host}:{int(port)}"


def _check_shape(text: str, backend: str, hosts: tuple[str, ...], path: str, user: str) -> None:
    if backend != C10D:
        return
    if len(hosts) > 1:
        raise UsageError(f"the endpoint {_shown(text)!r} has {len(hosts)} hosts: c10d has one")
    if path or user:
        raise UsageError(f"the endpoint {_shown(text)!r} is too long: c10d://host:port is all")


def _shown(text: str) -> str:
    """The text without its password, if it has one: errors end up in logs."""
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    login, at, hosts = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}{':…' if colon else ''}{at}{hosts}"


def split_address(text: str, source: str) -> tuple[str, int]:
    """Reads ``ADDR``, ``ADDR:PORT``, ``:PORT`` or nothing, as ``--listen`` takes it.

    Args:
        text: the address; IPv6 in brackets.
        source: for the error.

    Returns:
        The address ("" for every one) and the port (0 for any).

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]*))(:(?P<port>\d+))?", text)
    port = int(match["port"] or 0) if match else 0
    if not match or port > 65535:
        raise UsageError(f"{source} is no address to listen at: write ADDR, ADDR:PORT or :PORT")
    host = match["v6"] or match["name"]
    return "" if host == "*" else host, port


def read_credentials(
    values: Mapping[str, str | None], environ: Mapping[str, str]
) -> EtcdCredentials:
    """Collects the credentials for etcd.

    Args:
        values: ``etcd_user``, ``etcd_password_file``, ``etcd_ca``, ``etcd_cert``, ``etcd_key``.
        environ: the environment, for the password.

    Raises:
        UsageError: the password file cannot be read, or is empty.
    """
    password = environ.get(PASSWORD_VARIABLE, "")
    if path := values.get("etcd_password_file"):
        try:
            password = Path(path).read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(f"--etcd-password-file {path!r} cannot be read: {why}") from None
        if not password:
            raise UsageError(f"--etcd-password-file {path!r} is empty")
    tls = Tls(
        values.get("etcd_ca") or "", values.get("etcd_cert") or "", values.get("etcd_key") or ""
    )
    return EtcdCredentials(values.get("etcd_user") or "", password, tls)
