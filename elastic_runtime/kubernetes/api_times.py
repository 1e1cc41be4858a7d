"""Times as the Kubernetes API writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def format_time(seconds: float) -> str:
    """A time, given in seconds since 1970, as Kubernetes writes it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: Any) -> float:
    """A time of the API in seconds since 1970; 0 if there is none, or it is not a time."""
    if not isinstance(text, str) or not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return 0.0
