"""Durations as users write them: ``30s``, ``500ms``, ``10m``, ``1.5h``, ``7d``.

Flags, settings and the intervals of saves are all read here. How a measured time is
shown to people is in ``reporting/wording.py``.
"""

from __future__ import annotations

import math
import re

# The longest come last: ``duration_text`` takes the last one that fits.
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_OTHER_NAMES = {"sec": "s", "m": "min"}
_FORM = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]*)")


def parse_duration(text: str, unit: str = "") -> float:
    """Reads a duration.

    Args:
        text: a number and a unit: ms, s (or sec), min (or m), h or d.
        unit: of a number without one; "": it must have one.

    Returns:
        Seconds, 0 or more.

    Raises:
        ValueError: it is none.
    """
    match = _FORM.fullmatch(text.strip().lower())
    if not match:
        raise ValueError(text)
    name = match["unit"] or unit
    name = _OTHER_NAMES.get(name, name)
    if name not in _UNITS:
        raise ValueError(text)
    seconds = float(match["number"]) * _UNITS[name]
    if not math.isfinite(seconds):
        raise ValueError(text)
    return seconds


def duration_text(seconds: float) -> str:
    """An exact duration: ``500 ms``, ``30 s``, ``1.5 h``, ``7 d``."""
    fitting = [(name, length) for name, length in _UNITS.items() if seconds >= length]
    name, length = fitting[-1] if fitting else ("s", 1.0)
    return f"{seconds / length:g} {name}"
