"""Whether the piece of a step that is computed now is its last one: gradients are reduced with it.

A loader sets it, ``elastic.ddp`` asks.
"""

from __future__ import annotations

_is_last = True


def begin_piece(*, is_last: bool) -> None:
    """What is computed from now on belongs to a piece of a step, or to none (``is_last``)."""
    global _is_last
    _is_last = is_last


def is_last_piece() -> bool:
    """Whether gradients are to be reduced."""
    return _is_last
