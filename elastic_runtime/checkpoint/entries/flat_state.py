"""From the entries of a ``Checkpointer`` to the flat state that DCP stores, and back.

Every tensor of a module or an optimizer gets a key of its own, which DCP shards and reshards;
everything else becomes one value per key. Wrappers do not show in the keys (``DDP`` adds
``module.`` to each name, a compiled module ``_orig_mod.``), and the state of an optimizer is
kept by the names of the parameters, not by their numbers: so a checkpoint fits any world.
What each rank has for itself is kept under one key for each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.checkpoint.entries.entry_kinds import (
    NOT_NEEDED,
    GeneratorsOfState,
    KeepsValues,
    ModuleEntry,
    SavedEntry,
    State,
    ValueEntry,
    ValuesOfState,
    saved_entry,
)
from elastic_runtime.checkpoint.entries.parameter_names import ParameterNames
from elastic_runtime.checkpoint.entries.plain_values import check_plain
from elastic_runtime.checkpoint.format.stored_items import Stored, StoredTensor
from elastic_runtime.errors import CheckpointError, CheckpointUsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from elastic_runtime.checkpoint.entries.per_rank_values import RankPosition


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a checkpoint goes where.

    Attributes:
        targets: by key: a tensor to be filled, or None for another value.
        missing: keys of the program that the checkpoint lacks.
        surplus: keys of the checkpoint that the program has no use for.
    """

    targets: State
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

    def require_all(self, where: str) -> None:
        """Refuses a checkpoint that is not exactly that of this program.

        Args:
            where: path of the checkpoint.

        Raises:
            CheckpointError: it does not fit the entries; the message names what differs.
        """
        if self.missing or self.surplus:
            raise CheckpointUsageError(
                f"{where} does not fit this program:"
                + (f" it lacks {_few(self.missing)};" if self.missing else "")
                + (f" it also has {_few(self.surplus)};" if self.surplus else "")
                + " restore the entries, use another directory, "
                "or load what fits with resume(strict=False), in place with "
                "elastic.run(..., strict=False)"
            )


class Entries:
    """The entries of a ``Checkpointer``."""

    def __init__(self, entries: MutableMapping[str, Any]) -> None:
        """Sorts the entries by what they are.

        Args:
            entries: modules, optimizers, generators, anything with ``state_dict`` and
                ``load_state_dict``, and plain values by name. Plain values are replaced in the
                mapping when one is loaded.

        Raises:
            CheckpointError: an entry is none of these.
        """
        self._entries = entries
        self._parts: dict[str, SavedEntry] = {}
        names = ParameterNames(entries)
        for name, value in entries.items():
            self._parts[name] = saved_entry(name, value, entries, names)
        self._of_state: dict[str, SavedEntry] = {}

    def add_values(self, owner: KeepsValues, *, generators: bool = False) -> None:
        """Also keeps the values of a State, which are no entry of the user's.

        Args:
            owner: has them.
            generators: also keeps the global random generators of each rank.
        """
        self._of_state = {ValuesOfState.KEY: ValuesOfState(owner)}
        if generators:
            self._of_state[GeneratorsOfState.KEY] = GeneratorsOfState()

    def state(self, rank: int) -> State:
        """What a rank contributes to a checkpoint.

        Args:
            rank: this one; rank 0's values count for what is not a tensor, unless each rank has
                its own.

        Raises:
            CheckpointError: a value could not be loaded again without running code.
        """
        flat: State = {}
        for part in (*self._parts.values(), *self._of_state.values()):
            flat.update(part.state(rank))
        for key, value in flat.items():
            if not isinstance(value, torch.Tensor):
                check_plain(key, value)
        return flat

    def may_differ(self) -> set[str]:
        """The keys of tensors that training does not keep the same on all ranks.

        The statistics of a normalization are those of what each rank has seen; ``DDP`` gives rank
        0's to all before the next step.
        """
        found: set[str] = set()
        for name, part in self._parts.items():
            if isinstance(part, ModuleEntry):
                found |= part.buffers()
            elif isinstance(part, ValueEntry):
                found.add(name)
        return found

    def wanted(self, where: str, stored: Mapping[str, Stored], place: RankPosition) -> Wanted:
        """Where the content of a checkpoint is to go.

        Args:
            where: path of the checkpoint, for errors.
            stored: what it contains, by key.
            place: which rank this is.

        Raises:
            CheckpointError: a key has another kind or shape of value here.
        """
        flat: State = {}
        for part in (*self._parts.values(), *self._of_state.values()):
            flat.update(part.wanted(stored, place))
        targets = {
            key: target
            for key, target in flat.items()
            if key in stored and target is not NOT_NEEDED
        }
        for key, target in targets.items():
            _check_fit(where, key, target, stored[key])
        return Wanted(
            targets,
            missing=tuple(sorted(flat.keys() - stored.keys())),
            # What is loaded without training has no use for what is the runtime's.
            surplus=tuple(sorted(k for k in stored.keys() - flat.keys() if not _is_ours(k))),
        )

    def restore(self, loaded: State, place: RankPosition) -> list[str]:
        """Gives everything loaded to its owner.

        Args:
            loaded: the targets, filled.
            place: which rank this is.

        Returns:
            The entries that start from the beginning: what was saved belongs to other ranks.

        Raises:
            CheckpointError: an owner refuses it.
        """
        reset = []
        for name, part in {**self._parts, **self._of_state}.items():
            mine = {
                k: v
                for k, v in loaded.items()
                if k == name or k.startswith((f"{name}.", f"{name}:"))
            }
            try:
                if not part.restore(mine, place):
                    reset.append(name)
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointUsageError(
                    f"the entry {name!r} refused what was loaded for it: {error!r}"
                ) from error
        return reset

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the user gave, in order."""
        return tuple(self._parts)


def _is_ours(key: str) -> bool:
    return key.startswith((ValuesOfState.KEY, GeneratorsOfState.KEY))


def _check_fit(where: str, key: str, target: object, stored: Stored) -> None:
    if isinstance(target, torch.Tensor) != isinstance(stored, StoredTensor):
        raise CheckpointUsageError(f"{where} has another kind of value than the program at {key}")
    if isinstance(stored, StoredTensor) and isinstance(target, torch.Tensor):
        if stored.shape != tuple(target.shape):
            raise CheckpointUsageError(
                f"{where} has {key} with shape {stored.shape}, "
                f"this program with {tuple(target.shape)}"
            )
        if stored.dtype != target.dtype and not torch.can_cast(stored.dtype, target.dtype):
            raise CheckpointUsageError(
                f"{where} has {key} as {stored.dtype}, which {target.dtype}, "
                "as this program has it, cannot hold"
            )


def _few(keys: Sequence[str], limit: int = 3) -> str:
    shown = ", ".join(keys[:limit])
    return shown if len(keys) <= limit else f"{shown} and {len(keys) - limit} more"
