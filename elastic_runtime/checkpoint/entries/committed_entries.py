"""Entries that advance with each step, such as a sampler: by one checkpointer only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.state.wrappers import bare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.training.state import State


# For each entry, by its identity: the token of the checkpointer that advanced it last.
_committers: dict[int, object] = {}


class CommittedEntries:
    """Those entries of one checkpointer that advance with each step."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        """Finds the entries that have a ``commit`` method.

        Args:
            entries: all entries of the checkpointer, by name.
        """
        self._entries = {name: entry for name, entry in entries.items() if _commits(entry)}
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


def names_missing(entries: Mapping[str, Any], state: State) -> list[str]:
    """What a checkpoint must have, and has not.

    Args:
        entries: of the checkpointer.
        state: what is trained with it.

    Returns:
        The names of parts of the State, and of what is trained beside it by ``DiLoCo``.
    """
    kept = {id(bare(entry)) for entry in entries.values()}
    needed = {**state._named, **(state._alone.saves if state._alone is not None else {})}
    return [name for name, part in needed.items() if id(bare(part)) not in kept]


def _commits(entry: Any) -> bool:
    """Whether an entry has a method of that name, and not a layer or somebody's revision."""
    commit = getattr(entry, "commit", None)
    return callable(commit) and not isinstance(commit, torch.nn.Module)
