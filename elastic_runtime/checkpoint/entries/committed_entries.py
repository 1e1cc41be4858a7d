"""Entries that advance with each step, such as a sampler: by one checkpointer only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@runtime_checkable
class Committing(Protocol):
    """An entry that advances with each step, such as a sampler with its cursor."""

    def commit(self) -> None:
        """Advances by one step."""


# For each entry, by its identity: the token of the checkpointer that advanced it last.
_committers: dict[int, object] = {}


class CommittedEntries:
    """Those entries of one checkpointer that advance with each step."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        """Finds the entries that have a ``commit`` method.

        Args:
            entries: all entries of the checkpointer, by name.
        """
        self._entries = {k: e for k, e in entries.items() if isinstance(e, Committing)}
        self._has_committed = False
        self._token = object()

    def commit(self) -> None:
        """Advances each of them by one step.

        Raises:
            UsageError: another checkpointer advances an entry as well, in turn with this one.
        """
        for name, entry in self._entries.items():
            if self._has_committed and _committers[id(entry)] is not self._token:
                raise UsageError(
                    f"the entry {name!r} belongs to two checkpointers, and each step of either "
                    "advances it, so that half of the data would be skipped; give it to one only"
                )
            _committers[id(entry)] = self._token
            entry.commit()
        self._has_committed = True
