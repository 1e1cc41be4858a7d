"""From the entries of a ``Checkpointer`` to the flat state that DCP stores, and back.

Every tensor of a module or an optimizer gets a key of its own, which DCP shards and reshards;
everything else becomes one value per key. Wrappers do not show in the keys (``DDP`` adds
``module.`` to each name, a compiled module ``_orig_mod.``), and the state of an optimizer is
kept by the names of the parameters, not by their numbers: so a checkpoint fits any world.
What each rank has for itself is kept under one key for each rank.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from elastic_runtime.checkpoint.entries.parameter_names import ParameterNames
from elastic_runtime.checkpoint.entries.per_rank_values import (
    OwnedByRank,
    PerRank,
    owned_by_rank,
    take_from_others,
)
from elastic_runtime.checkpoint.entries.tensor_memory import local_tensor
from elastic_runtime.checkpoint.format.stored_items import Stored, StoredTensor
from elastic_runtime.errors import CheckpointError, CheckpointUsageError
from elastic_runtime.system.torch_private import loads_plainly
from elastic_runtime.worker.state.state_parts import unwrapped

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, MutableMapping, Sequence

    from elastic_runtime.checkpoint.entries.per_rank_values import RankPosition

State = dict[str, Any]

# In place of a target: it belongs to the entry, but this rank does not need it.
_NOT_NEEDED: Any = object()

# What ``torch.load(weights_only=True)`` reads back as it was.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


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


class _Entry(Protocol):
    def state(self, rank: int) -> State:
        """What this rank has to save, by key; tensors are those in use, not copies."""

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        """Where the stored values are to go, by key; other values than tensors are replaced."""

    def restore(self, loaded: State, place: RankPosition) -> bool:
        """Takes over what was loaded into ``wanted``, as far as there was something.

        Returns:
            False if the entry began anew instead.
        """


class _ModuleEntry:
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


class _ValueEntry:
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


class _CountersEntry:
    """The counters of a State, if it has any; a checkpoint without them is as good."""

    KEY = "elastic_runtime.counters"

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def state(self, rank: int) -> State:
        return _shared({self.KEY: counters} if (counters := self._owner.state_dict()) else {}, rank)

    def wanted(self, stored: Mapping[str, Stored], place: RankPosition) -> State:
        return {self.KEY: None} if self.KEY in stored else {}

    def restore(self, loaded: State, place: RankPosition) -> bool:
        if self.KEY in loaded:
            self._owner.load_state_dict(loaded[self.KEY])
        return True


class _PerRankEntry:
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
            key: _NOT_NEEDED if self._is_own and rank != place.rank else _fresh(stored[key])
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
        self._parts: dict[str, _Entry] = {}
        names = ParameterNames(entries)
        for name, value in entries.items():
            self._parts[name] = _part(name, value, entries, names)
        self._counters: dict[str, _Entry] = {}

    def add_counters(self, owner: Any) -> None:
        """Also keeps the counters of a State, which are no entry of the user's.

        Args:
            owner: gives them with ``state_dict`` and takes them with ``load_state_dict``.
        """
        self._counters = {_CountersEntry.KEY: _CountersEntry(owner)}

    def state(self, rank: int) -> State:
        """What a rank contributes to a checkpoint.

        Args:
            rank: this one; rank 0's values count for what is not a tensor, unless each rank has
                its own.

        Raises:
            CheckpointError: a value could not be loaded again without running code.
        """
        flat: State = {}
        for part in (*self._parts.values(), *self._counters.values()):
            flat.update(part.state(rank))
        for key, value in flat.items():
            if not isinstance(value, torch.Tensor):
                _check_plain(key, value)
        return flat

    def may_differ(self) -> set[str]:
        """The keys of tensors that training does not keep the same on all ranks.

        The statistics of a normalization are those of what each rank has seen; ``DDP`` gives rank
        0's to all before the next step.
        """
        found: set[str] = set()
        for name, part in self._parts.items():
            if isinstance(part, _ModuleEntry):
                found |= part.buffers()
            elif isinstance(part, _ValueEntry):
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
        for part in (*self._parts.values(), *self._counters.values()):
            flat.update(part.wanted(stored, place))
        targets = {
            key: target
            for key, target in flat.items()
            if key in stored and target is not _NOT_NEEDED
        }
        for key, target in targets.items():
            _check_fit(where, key, target, stored[key])
        return Wanted(
            targets,
            missing=tuple(sorted(flat.keys() - stored.keys())),
            # A program without a State, such as an evaluation, has no use for counters.
            surplus=tuple(sorted(stored.keys() - flat.keys() - {_CountersEntry.KEY})),
        )

    def restore(self, loaded: State, place: RankPosition) -> list[str]:
        """Gives everything loaded to its owner.

        Args:
            loaded: the targets, filled.
            place: which rank this is.

        Returns:
            The entries that began anew, because what was saved belongs to other ranks.

        Raises:
            CheckpointError: an owner refuses it.
        """
        anew = []
        for name, part in {**self._parts, **self._counters}.items():
            mine = {k: v for k, v in loaded.items() if k == name or k.startswith(f"{name}.")}
            try:
                if not part.restore(mine, place):
                    anew.append(name)
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointUsageError(
                    f"the entry {name!r} refused what was loaded for it: {error!r}"
                ) from error
        return anew

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the user gave, in order."""
        return tuple(self._parts)


def _part(
    name: str, value: Any, entries: MutableMapping[str, Any], parameter_names: ParameterNames
) -> _Entry:
    if not name or "." in name:
        raise CheckpointUsageError(f"the entry {name!r} needs a name without a dot")
    if isinstance(value, torch.nn.Module):
        return _ModuleEntry(name, value)
    if isinstance(value, torch.optim.Optimizer):
        return _OptimizerEntry(name, value, parameter_names)
    if (owner := owned_by_rank(value)) is not None:
        if isinstance(value, PerRank):
            _check_plain(name, owner.own_state())
        return _PerRankEntry(name, owner)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _StatefulEntry(name, value)
    _check_plain(name, value)
    return _ValueEntry(name, entries)


def _check_plain(where: str, value: object) -> None:
    """Refuses what a load without running code could not bring back, while it can be mended."""
    kind = type(value)
    if kind in _ATOMS or kind in (torch.Tensor, torch.nn.Parameter):
        return
    if kind in (dict, OrderedDict, Counter):
        for key, item in value.items():  # type: ignore[attr-defined]
            _check_plain(where, key)
            _check_plain(f"{where}[{key!r}]", item)
    elif kind in (list, tuple, set):
        for index, item in enumerate(value):  # type: ignore[arg-type]
            _check_plain(f"{where}[{index}]", item)
    else:
        raise CheckpointUsageError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be loaded without "
            "running code; give plain values (numbers, strings, tensors, lists, dicts) "
            "or an object with state_dict and load_state_dict"
        )


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
