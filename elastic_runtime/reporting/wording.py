"""Words for people: numbers of bytes, durations, and the fields of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]
_UNITS = ("KiB", "MiB", "GiB", "TiB")


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


def again(step: int, reached: int | None) -> str:
    """How many steps are to be made once more, if any are; empty otherwise.

    Args:
        step: from which one the job goes on.
        reached: how far it was; None: nobody knows.
    """
    if reached is None or reached <= step:
        return ""
    return f" ({count(reached - step, 'step')} again)"


def size(count: int) -> str:
    """A number of bytes for people: ``512 bytes``, ``1.5 GiB``."""
    if count < 1024:
        return f"{count} bytes"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 1000 or unit == _UNITS[-1]:
            break
    return f"{value:.3g} {unit}"


def cut(text: str, most: int) -> str:
    """A text on one line, and cut off where it would be longer.

    Args:
        text: any.
        most: characters of the result.
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 2].rstrip()} …"
