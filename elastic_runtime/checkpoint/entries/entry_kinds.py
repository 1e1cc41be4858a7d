"""What users register, by kind: modules, optimizers, values of each rank, plain values.

Each kind knows the keys of its values in the flat state, where loaded ones are to go, and how to
give them back to their owner.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

import torch

from elastic_runtime.checkpoint.entries.per_rank_values import (
    GlobalGenerators,
    OwnedByRank,
    PerRank,
    owned_by_rank,
    take_from_others,
)
from elastic_runtime.checkpoint.entries.pieces import InPieces
from elastic_runtime.checkpoint.entries.plain_values import check_plain
from elastic_runtime.checkpoint.entries.tensor_memory import local_tensor
from elastic_runtime.checkpoint.format.stored_items import Stored, StoredTensor
from elastic_runtime.errors import CheckpointUsageError
from elastic_runtime.system.torch_formats import loads_plainly
from elastic_runtime.worker.state.wrappers import unwrapped

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, MutableMapping

    from elastic_runtime.checkpoint.entries.parameter_names import ParameterNames
    from elastic_runtime.checkpoint.entries.per_rank_values import RankPosition

State = dict[str, Any]

# In place of a target: it belongs to the entry, but this rank does not need it.
NOT_NEEDED: Any = object()


class SavedEntry(Protocol):
    """One entry of a checkpointer, of any kind."""

    def state(self, rank: int) -> State:
        """What this rank has to save, by key; tensors are those in use, not copies."""

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        """Where the stored values are to go, by key; other values than tensors are replaced."""

    def restore(self, loaded: State, place: RankPosition) -> bool:
        """Takes over what was loaded into ``wanted``, as far as there was something.

        Returns:
            False if the entry starts from the beginning instead.
        """


class ModuleEntry:
    """A module: each parameter and buffer under a key of its own."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self._prefix = f"{name}."
        self._module = unwrapped(module)

    def state(self, rank: int) -> State:
        flat = {self._prefix + key: value for key, value in self._module.state_dict().items()}
        return _shared(flat, rank)

    def buffers(self) -> set[str]:
        """The keys of what is no parameter."""
        named = self._module.named_buffers(remove_duplicate=False)
        return {self._prefix + name for name, _ in named}

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        return self.state(0)

    def restore(self, loaded: State, place: RankPosition) -> bool:
        expected = self._module.state_dict()
        state = {key.removeprefix(self._prefix): value for key, value in loaded.items()}
        if state.keys() == expected.keys() and loads_plainly(self._module):
            own = _memory(self._module)
            if all(own.get(key, ()) == _address(value) for key, value in state.items()):
                return True  # everything was read to where it belongs
        # For hooks, for what is no tensor, and for tensors that the module only makes to be saved.
        self._module.load_state_dict(state, strict=state.keys() == expected.keys())
        return True


class _OptimizerEntry:
    """An optimizer: each tensor of its state under the name of the parameter that it belongs to."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, names: ParameterNames) -> None:
        self._name = name
        self._optimizer = optimizer
        self._names = names

    def _parameters(self) -> dict[str, torch.Tensor]:
        """All parameters by name, in the order in which the optimizer numbers them."""
        found = [p for group in self._optimizer.param_groups for p in group["params"]]
        names = self._names.of(found)
        return {name or f"#{i}": p for i, (name, p) in enumerate(zip(names, found, strict=True))}

    def state(self, rank: int) -> State:
        flat: State = {}
        for name, parameter in self._parameters().items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                flat[f"{self._name}.state.{name}.{key}"] = value
        flat[f"{self._name}.param_groups"] = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]
        return _shared(flat, rank)

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        # An optimizer that has made no step has no state yet: the checkpoint says what there is.
        parameters = self._parameters()
        flat: State = {f"{self._name}.param_groups": None}
        for key, description in stored.items():
            name, part = self._split(key, parameters)
            if not name:
                continue
            parameter = parameters[name]
            flat[key] = None
            if isinstance(description, StoredTensor):
                present = self._optimizer.state.get(parameter, {}).get(part)
                flat[key] = _room_for(description, parameter, present)
        return flat

    def _split(self, key: str, names: Container[str]) -> tuple[str, str]:
        prefix = f"{self._name}.state."
        end = len(key) if key.startswith(prefix) else 0
        while (end := key.rfind(".", len(prefix), end)) > 0:  # there may be dots on both sides
            if (name := key[len(prefix) : end]) in names:
                return name, key[end + 1 :]
        return "", ""

    def restore(self, loaded: State, place: RankPosition) -> bool:
        if not loaded:
            return True
        numbers = {name: number for number, name in enumerate(self._parameters())}
        state: dict[int, State] = {}
        for key, value in loaded.items():
            name, part = self._split(key, numbers)
            if name:
                state.setdefault(numbers[name], {})[part] = value
        present = self._optimizer.state_dict()["param_groups"]
        groups = loaded.get(f"{self._name}.param_groups", present)
        if len(groups) != len(present):
            raise CheckpointUsageError(
                f"the optimizer {self._name!r} has {len(present)} parameter groups, "
                f"the checkpoint {len(groups)}; build it as it was when it was saved"
            )
        merged = [
            {**group, "params": now["params"]} for group, now in zip(groups, present, strict=True)
        ]
        self._optimizer.load_state_dict({"state": state, "param_groups": merged})
        return True


def _room_for(stored: StoredTensor, parameter: torch.Tensor, present: object) -> torch.Tensor:
    if isinstance(present, torch.Tensor):
        if (tuple(present.shape), present.dtype) == (stored.shape, stored.dtype):
            return present.detach()
    if stored.shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=stored.dtype, requires_grad=False)
    # Counters and the like. Optimizers keep them on the CPU, or move them when they take them over.
    return torch.empty(stored.shape, dtype=stored.dtype, device="cpu")


class _StatefulEntry:
    """Anything with ``state_dict`` and ``load_state_dict``: one value, that of rank 0."""

    def __init__(self, name: str, owner: Any) -> None:
        self._name = name
        self._owner = owner

    def state(self, rank: int) -> State:
        return {self._name: self._owner.state_dict()} if rank == 0 else {}

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        return {self._name: None}

    def restore(self, loaded: State, place: RankPosition) -> bool:
        if self._name in loaded:
            self._owner.load_state_dict(loaded[self._name])
        return True


class ValueEntry:
    """A plain value, which is replaced in the mapping that the user gave."""

    def __init__(self, name: str, entries: MutableMapping[str, Any]) -> None:
        self._name = name
        self._entries = entries

    def state(self, rank: int) -> State:
        return _shared({self._name: self._entries[self._name]}, rank)

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        return {self._name: _fresh(stored.get(self._name))}

    def restore(self, loaded: State, place: RankPosition) -> bool:
        if self._name in loaded:
            self._entries[self._name] = loaded[self._name]
        return True


class KeepsValues(Protocol):
    """A State, as its values are saved and loaded."""

    @property
    def values(self) -> dict[str, Any]:
        """The values by name, as they are now; which ones there are may change."""

    @property
    def progress(self) -> dict[str, Any]:
        """What its job has to remember."""


class ValuesOfState:
    """The plain values of a State. What was saved without a State has none, and is as good."""

    KEY = "elastic_runtime.values"
    _PROGRESS = f"{KEY}:progress"

    def __init__(self, owner: KeepsValues) -> None:
        self._owner = owner

    def state(self, rank: int) -> State:
        values = {f"{self.KEY}.{name}": value for name, value in self._owner.values.items()}
        return _shared({**values, self._PROGRESS: dict(self._owner.progress)}, rank)

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        if self._PROGRESS not in stored:
            return {}
        saved = {key: _fresh(stored[key]) for key in stored if key.startswith(self.KEY)}
        return {**{f"{self.KEY}.{name}": None for name in self._owner.values}, **saved}

    def restore(self, loaded: State, place: RankPosition) -> bool:
        if self._PROGRESS in loaded:
            self._owner.progress.update(loaded.pop(self._PROGRESS))
            prefix = f"{self.KEY}."
            found = {key.removeprefix(prefix): value for key, value in loaded.items()}
            self._owner.values.update(found)
        return True


class _PerRankEntry:
    """What each rank has for itself, under one key for each rank."""

    def __init__(self, name: str, owner: OwnedByRank) -> None:
        self._name = name
        self._owner = owner
        self._is_own = True  # what is loaded is for this rank, not of the ranks of another world
        self._key = re.compile(rf"{re.escape(name)}\.rank-(\d+)")

    def state(self, rank: int) -> State:
        return {f"{self._name}.rank-{rank}": self._owner.own_state()}

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        ranks = {int(found[1]): key for key in stored if (found := self._key.fullmatch(key))}
        if sorted(ranks) != list(range(len(ranks))) or not ranks:
            # None at all, or what was once a value of all ranks.
            self._is_own = True
            return {self._name: _fresh(stored.get(self._name))}
        self._is_own = len(ranks) == place.world
        return {
            key: NOT_NEEDED if self._is_own and rank != place.rank else _fresh(stored[key])
            for rank, key in ranks.items()
        }

    def restore(self, loaded: State, place: RankPosition) -> bool:
        if self._is_own:
            for state in loaded.values():
                self._owner.take(state)
            return True
        states = [loaded[key] for key in sorted(loaded, key=self._rank_of)]
        return take_from_others(self._owner, states, place)

    def _rank_of(self, key: str) -> int:
        found = self._key.fullmatch(key)
        return int(found[1]) if found else 0


class GeneratorsOfState(_PerRankEntry):
    """The global generators; a checkpoint without them is as good."""

    KEY = "elastic_runtime.generators"

    def __init__(self) -> None:
        super().__init__(self.KEY, GlobalGenerators())

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        there = any(self._key.fullmatch(key) for key in stored)
        return super().wanted(stored, place) if there else {}


class _PiecesEntry:
    """What all ranks hold together, under one key for each piece."""

    def __init__(self, name: str, owner: InPieces) -> None:
        self._owner = owner
        self._name = name
        self._prefix = f"{name}.piece-"
        self._is_saved = False  # the checkpoint has pieces, of which this rank may need none

    def state(self, rank: int) -> State:
        return {self._prefix + name: value for name, value in self._owner.own_pieces().items()}

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        saved = [k.removeprefix(self._prefix) for k in stored if k.startswith(self._prefix)]
        self._is_saved = bool(saved)
        if not saved:
            return {self._name: None}  # which the checkpoint lacks
        needed = set(self._owner.needed_pieces(saved))
        return {
            (key := self._prefix + name): _fresh(stored[key]) if name in needed else NOT_NEEDED
            for name in saved
        }

    def restore(self, loaded: State, place: RankPosition) -> bool:
        if self._is_saved:
            pieces = {key.removeprefix(self._prefix): value for key, value in loaded.items()}
            self._owner.take_pieces(pieces)
        return self._is_saved


def _shared(flat: State, rank: int) -> State:
    """What a rank contributes of values that all ranks have: rank 0's count if they are no tensors.

    Tensors may be sharded, and one that all ranks hold is written by one of them.
    """
    return {k: v for k, v in flat.items() if rank == 0 or isinstance(v, torch.Tensor)}


def _fresh(stored: Stored | None) -> torch.Tensor | None:
    """A target for a value that is replaced."""
    if isinstance(stored, StoredTensor):
        return torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
    return None


def _memory(module: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Where the parameters and buffers of a module are."""
    own = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    return {key: place for key, value in own.items() if (place := _address(value)) is not None}


def _address(value: object) -> tuple[int, int] | None:
    if not isinstance(value, torch.Tensor):
        return None
    local = local_tensor(value)
    return local.data_ptr(), local.nbytes


def saved_entry(
    name: str, value: Any, entries: MutableMapping[str, Any], parameter_names: ParameterNames
) -> SavedEntry:
    """An entry, by what kind of thing it is.

    Args:
        name: that the user gave it.
        value: what it is.
        entries: all of the user's; a plain value is replaced in it when one is loaded.
        parameter_names: of the modules among the entries.

    Raises:
        CheckpointUsageError: it cannot be saved; the message says why.
    """
    if not name or "." in name:
        raise CheckpointUsageError(f"the entry {name!r} needs a name without a dot")
    if isinstance(value, torch.nn.Module):
        return ModuleEntry(name, value)
    if isinstance(value, torch.optim.Optimizer):
        return _OptimizerEntry(name, value, parameter_names)
    if (owner := owned_by_rank(value)) is not None:
        if isinstance(value, PerRank):
            check_plain(name, owner.own_state())
        return _PerRankEntry(name, owner)
    if isinstance(value, InPieces):
        return _PiecesEntry(name, value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _StatefulEntry(name, value)
    check_plain(name, value)
    return ValueEntry(name, entries)
