"""Many schedules are played in parts, of which the quick lane plays the first."""

from __future__ import annotations

from typing import Any

import pytest

_SLOW = pytest.mark.slow("the quick lane plays the first part")


def quick_first(parts: int) -> list[Any]:
    """The numbers of so many parts, for ``pytest.mark.parametrize``."""
    return [0, *(pytest.param(part, marks=_SLOW) for part in range(1, parts))]
