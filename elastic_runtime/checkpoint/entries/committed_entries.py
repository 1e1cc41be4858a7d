"""Entries that move on with each step, such as a sampler: told of it by one checkpointer only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@runtime_checkable
class Committing(Protocol):
    """An entry that moves on with each step, such as a sampler with its cursor."""

    def commit(self) -> None:
        """Takes note that a step is done."""


# By the identity of an entry: the token of the one who has committed it last.
_committers: dict[int, object] = {}


class CommittedEntries:
    """Those entries of one checkpointer that move on with each step."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        """Finds them among all entries."""
        self._entries = {k: e for k, e in entries.items() if isinstance(e, Committing)}
        self._has_committed = False
        self._token = object()

    def commit(self) -> None:
        """Has each of them take note of a step.

        Raises:
            UsageError: another checkpointer does so as well, in turn with this one.
        """
        for name, entry in self._entries.items():
            if self._has_committed and _committers[id(entry)] is not self._token:
                raise UsageError(
                    f"the entry {name!r} is one of two checkpointers, and each step of either "
                    "moves it on, so that half of the data would be left out; give it to one only"
                )
            _committers[id(entry)] = self._token
            entry.commit()
        self._has_committed = True
