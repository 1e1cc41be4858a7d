"""A job's settings and one of its rounds, for several tests."""

from __future__ import annotations

from typing import Any

from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig
from elastic_runtime.protocol.round_records import Member, RoundRecord

# Two nodes; the first one has two workers, and the second one three.
ROUND = RoundRecord(3, "x.1", (Member("a", "a", "h1", 2), Member("b", "b", "h2", 3)), 4000, "why")


def job(**settings: Any) -> JobConfig:
    """The settings of node a."""
    entry, endpoint = Entry(SCRIPT, "train.py"), Endpoint("c10d", ("127.0.0.1:1",))
    usual = {"entry": entry, "endpoint": endpoint, "run_id": "run", "node_name": "a"}
    return JobConfig(**{**usual, **settings})
