"""Keeps credentials out of messages: what in a URL, or around this process, must stay secret."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, urlsplit

_SECRET_NAMES = ("SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "_KEY", "SAS", "CONNECTION_STRING")


def without_credentials(url: str) -> str:
    """A URL for people: without user, password and query."""
    scheme, _, rest = url.partition("://")
    rest = rest.partition("?")[0].rstrip("/")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def secrets_of(url: str) -> frozenset[str]:
    """What of a URL must stay secret: its password, its query, and each value in that."""
    parts = urlsplit(url)
    found = {parts.password or "", parts.query, *(value for _, value in parse_qsl(parts.query))}
    return frozenset(secret for secret in found if secret)


def secrets_around() -> frozenset[str]:
    """What the environment holds under a name that sounds like a credential."""
    return frozenset(
        value
        for name, value in os.environ.items()
        if len(value) >= 8 and any(part in name.upper() for part in _SECRET_NAMES)
    )
