"""What an agent says of its job, as it answers at ``/status``, and in a pod's last words: pure."""

from __future__ import annotations

import json
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import AgentReport
from elastic_runtime.events.round_events import RESTART_CLASSES
from elastic_runtime.limits import LONGEST_REASON

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
        goodput=_percent(said.get("goodput")),
        fault=shorten(str(said.get("fault") or ""), LONGEST_REASON, placeholder=" …"),
        step=_count(said, "step", unknown=-1),
        checkpoint_step=_count(said, "checkpoint_step", unknown=-1),
        restarts={name: _count(restarts, name) for name in RESTART_CLASSES},
        ready=bool(said.get("ready")),
    )


def _percent(share: Any) -> int:
    """A share of 1 in percent; -1: it is none."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        return -1
    return round(100 * share)


def _count(said: Mapping[str, Any], name: str, unknown: int = 0) -> int:
    """A whole number that the status of a job can hold."""
    value = said.get(name)
    if value is None:
        return unknown
    if isinstance(value, bool) or not isinstance(value, int) or not unknown <= value <= _MOST:
        raise ValueError(f"{name} is no count")
    return value
