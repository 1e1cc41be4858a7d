"""Events: the one way in which anything that happens leaves the program.

An event has a name and fields. ``log`` renders it, as a calm line for a person or as one line of
JSON; the agent also keeps the important ones in the store for ``elasticctl``.
"""

from __future__ import annotations

from typing import Any, Protocol


class Emit(Protocol):
    """Where events go."""

    def __call__(self, name: str, /, **fields: Any) -> None:
        """Reports that ``name`` happened.

        Args:
            name: a dotted name out of ``docs/operations.md``, such as ``round.sealed``.
            fields: plain values (strings, numbers, booleans, lists of those).
        """
        ...


def silent(name: str, /, **fields: Any) -> None:
    """An ``Emit`` that drops everything."""
