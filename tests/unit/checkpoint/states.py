"""States that are saved, for tests of what is saved and of what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_runtime import State
from tests.trained import trained

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


def state_in(
    place: str | os.PathLike[str], parts: Mapping[str, Any] | None = None, **settings: Any
) -> State:
    """A new State that is saved there.

    Args:
        place: where.
        parts: its objects and values; None: one value.
        **settings: of ``State.checkpoints``.
    """
    state = State(**({"a": 1} if parts is None else parts))
    state.checkpoints(place, **settings)
    return state


def save(place: str | os.PathLike[str], parts: Mapping[str, Any] | None = None) -> None:
    """Goes on from what is there, makes a step, and saves it.

    Args:
        place: where.
        parts: see ``state_in``.
    """
    state = state_in(place, parts)
    with trained(state):
        state.commit()
