"""What an agent says of its job, as it answers at ``/status``, and in a pod's last words: pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import AgentReport
from elastic_runtime.events.round_events import RESTART_CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 2**63 - 1


def read_last_report(text: str) -> AgentReport | None:
    """The report in a pod's last words; None if there is none that can be read."""
    try:
        return read_report(text.encode()) if text else None
    except ValueError:
        return None  # users may write anything there


def read_report(body: bytes) -> AgentReport:
    """What an agent said.

    Args:
        body: what was received; users may run any server in a pod.

    Raises:
        ValueError: it is not what an agent says.
    """
    try:
        said = json.loads(body)
    except RecursionError:
        raise ValueError("too deep") from None
    restarts = said.get("restarts") or {} if isinstance(said, dict) else None
    if not isinstance(restarts, dict):
        raise ValueError("not an object")
    return AgentReport(
        run_id=str(said.get("run_id") or ""),
        round=_count(said, "round"),
        world=_count(said, "world"),
        nodes=_count(said, "nodes"),
        step=_count(said, "step", unknown=-1),
        checkpoint_step=_count(said, "checkpoint_step", unknown=-1),
        restarts={name: _count(restarts, name) for name in RESTART_CLASSES},
        ready=bool(said.get("ready")),
    )


def _count(said: Mapping[str, Any], name: str, unknown: int = 0) -> int:
    """A whole number that the status of a job can hold."""
    value = said.get(name)
    if value is None:
        return unknown
    if isinstance(value, bool) or not isinstance(value, int) or not unknown <= value <= _MOST:
        raise ValueError(f"{name} is no count")
    return value
