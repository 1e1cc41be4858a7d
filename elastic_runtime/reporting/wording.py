"""Words for people: numbers, durations, and what faults have cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]

# What the fault itself has cost is said if it is so many seconds more than its recovery.
_NOTICEABLE = 1.0


class Shown(dict[str, str]):
    """Fields as people read them."""

    def __init__(self, fields: Fields) -> None:
        super().__init__({name: _shown(name, value) for name, value in fields.items()})

    def __missing__(self, name: str) -> str:
        return "?"


def _shown(name: str, value: Any) -> str:
    if name in ("seconds", "delay") and isinstance(value, int | float):
        return duration(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value).strip().partition("\n")[0]


def duration(seconds: float) -> str:
    """A duration for people: ``0.31 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"
    return f"{minutes} min {rest} s" if minutes else f"{whole} s"


def count(number: Any, noun: str) -> str:
    """A number of things for people: ``1 node``, ``2 nodes``."""
    many = len(number) if isinstance(number, list | tuple) else number
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"


def hangs(fields: Fields) -> str:
    """Which ranks have hung, and where."""
    shown = Shown(fields)
    if not fields.get("ranks"):  # nobody here is to blame
        return shown["why"]
    return f"{_ranks(fields)} {shown['why']}; being replaced"


def stuck(fields: Fields) -> str:
    """Which ranks do not leave a broken round, and why."""
    return f"{_ranks(fields)} is stuck: {Shown(fields)['why']}; being replaced"


def _ranks(fields: Fields) -> str:
    named = fields.get("ranks") or []
    return f"{'rank' if len(named) == 1 else 'each of ranks'} {Shown(fields)['ranks']}"


def recovery(fields: Fields) -> str:
    """How long a recovery took, and what the fault has cost if that was far more: nobody knows of a
    hang before its time-out is over."""
    shown = Shown(fields)
    stalled, seconds = fields.get("stalled"), fields.get("seconds")
    text = f"recovered in {shown['seconds']}"
    if isinstance(stalled, int | float) and isinstance(seconds, int | float):
        if stalled > seconds + _NOTICEABLE:
            text += f", after {duration(stalled)} without a step"
    return text


def again(fields: Fields) -> str:
    """How many steps are to be made once more, if any are."""
    step, reached = fields.get("step"), fields.get("reached")
    if not isinstance(step, int) or not isinstance(reached, int) or reached <= step:
        return ""
    return f" ({count(reached - step, 'step')} again)"


def loaded(fields: Fields) -> str:
    """From which step on a job goes on that has lost its memory."""
    shown = Shown(fields)
    return f"went back to step {shown['step']}{again(fields)}: {shown['reason']}"


def done(fields: Fields) -> str:
    """The end of a job, and what its faults have cost."""
    text = f"done in {Shown(fields)['seconds']}"
    restarts = {kind: times for kind, times in (fields.get("restarts") or {}).items() if times}
    costs = []
    if restarts:
        kinds = ", ".join(f"{times} {kind}" for kind, times in restarts.items())
        costs.append(f"{count(sum(restarts.values()), 'restart')} ({kinds})")
    if fields.get("lost_steps"):
        costs.append(f"{count(fields['lost_steps'], 'step')} made again")
    if fields.get("stalled", 0.0) >= _NOTICEABLE:
        costs.append(f"{duration(fields['stalled'])} stalled")
    if fields.get("goodput") is not None:
        costs.append(f"goodput {100 * fields['goodput']:.0f} %")
    return f"{text}: {', '.join(costs)}" if costs else text
