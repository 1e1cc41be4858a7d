"""Checks that a training function can be called with one argument, the ``World``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def check_signature(train: Callable[..., Any]) -> None:
    """Makes sure that ``train(world)`` can be called, before anything is set up for it.

    Raises:
        UsageError: it takes no argument, or needs more of them.
    """
    name = getattr(train, "__name__", "train")
    if not callable(train):
        raise UsageError(f"elastic.run needs a function, and was given {train!r}")
    try:
        signature = inspect.signature(train)
    except ValueError:  # some that are written in C do not tell
        return
    try:
        signature.bind(None)
    except TypeError:
        raise UsageError(
            f"{name}{signature} does not take the one argument that elastic.run calls it with, the "
            f"World (rank, size, ...): write def {name}(world)"
        ) from None
