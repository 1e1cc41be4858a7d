"""What an agent says of its job, as it answers at ``/status``, and in a pod's last words: pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import AgentReport
from elastic_runtime.events.round_events import RESTART_CLASSES
from elastic_runtime.limits import LONGEST_REASON
from elastic_runtime.reporting.wording import cut

if TYPE_CHECKING:
    from collections.abc import Mapping

# What fields of a status can hold: round and steps, and all others.
_MOST, _MOST_OTHERS = 2**63 - 1, 2**31 - 1


def read_last_report(text: str) -> AgentReport | None:
    """The report in a pod's last words.

    Args:
        text: as it was left; users may write anything there.

    Returns:
        None if there is none that can be read.
    """
    try:
        return read_report(text.encode()) if text else None
    except ValueError:
        return None


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
        world=_count(said, "world", most=_MOST_OTHERS),
        nodes=_count(said, "nodes", most=_MOST_OTHERS),
        goodput=_percent(said.get("goodput")),
        fault=cut(str(said.get("fault") or ""), LONGEST_REASON),
        step=_count(said, "step", unknown=-1),
        checkpoint_step=_count(said, "checkpoint_step", unknown=-1),
        restarts={name: _count(restarts, name, most=_MOST_OTHERS) for name in RESTART_CLASSES},
        ready=bool(said.get("ready")),
    )


def _percent(share: Any) -> int:
    """A share of 1 in percent; -1: it is none."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        return -1
    return round(100 * share)


def _count(said: Mapping[str, Any], name: str, unknown: int = 0, most: int = _MOST) -> int:
    """A whole number that the status of a job can hold."""
    value = said.get(name)
    if value is None:
        return unknown
    if isinstance(value, bool) or not isinstance(value, int) or not unknown <= value <= most:
        raise ValueError(f"{name} is no count")
    return value
