"""From the entries of a ``Checkpointer`` to the flat state that DCP stores, and back.

Every tensor of a module or an optimizer gets a key of its own, which DCP shards and reshards;
everything else becomes one value per key. Wrappers do not show in the keys (``DDP`` adds
``module.`` to each name, a compiled module ``_orig_mod.``), and the state of an optimizer is
kept by the names of the parameters, not by their numbers: so a checkpoint fits any world.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)

from elastic_runtime.errors import CheckpointError
from elastic_runtime.worker.parts import unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping

State = dict[str, Any]

# What ``torch.load(weights_only=True)`` reads back as it was.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


class _Entry(Protocol):
    def state(self) -> State:
        """What is to be saved, by key; tensors are those in use, not copies."""

    def wanted(self, stored: Mapping[str, object]) -> State:
        """Where the stored values are to go, by key; other values than tensors are replaced."""

    def restore(self, loaded: State) -> None:
        """Takes over what was loaded into ``wanted``."""


class _ModuleEntry:
    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self._prefix = f"{name}."
        self._module = unwrapped(module)

    def state(self) -> State:
        return {self._prefix + key: value for key, value in self._module.state_dict().items()}

    def wanted(self, stored: Mapping[str, object]) -> State:
        return self.state()

    def restore(self, loaded: State) -> None:
        # The tensors are in place already; this is for hooks and for what is no tensor.
        self._module.load_state_dict(
            {key.removeprefix(self._prefix): value for key, value in loaded.items()}
        )


class _OptimizerEntry:
    def __init__(
        self, name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str]
    ) -> None:
        self._name = name
        self._optimizer = optimizer
        self._names = names

    def _parameters(self) -> dict[str, torch.Tensor]:
        """All parameters by name, in the order in which the optimizer numbers them."""
        found = [p for group in self._optimizer.param_groups for p in group["params"]]
        return {self._names.get(id(p), f"#{index}"): p for index, p in enumerate(found)}

    def state(self) -> State:
        flat: State = {}
        for name, parameter in self._parameters().items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                flat[f"{self._name}.state.{name}.{key}"] = value
        flat[f"{self._name}.param_groups"] = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]
        return flat

    def wanted(self, stored: Mapping[str, object]) -> State:
        # An optimizer that has made no step has no state yet: the checkpoint says what there is.
        parameters = self._parameters()
        flat: State = {f"{self._name}.param_groups": None}
        for key, description in stored.items():
            parameter = parameters.get(self._split(key)[0])
            if parameter is None:
                continue
            flat[key] = (
                _room_for(description, parameter)
                if isinstance(description, TensorStorageMetadata)
                else None
            )
        return flat

    def _split(self, key: str) -> tuple[str, str]:
        prefix = f"{self._name}.state."
        name, _, part = key.removeprefix(prefix).rpartition(".")
        return (name, part) if key.startswith(prefix) else ("", "")

    def restore(self, loaded: State) -> None:
        numbers = {name: number for number, name in enumerate(self._parameters())}
        state: dict[int, State] = {}
        for key, value in loaded.items():
            name, part = self._split(key)
            if name:
                state.setdefault(numbers[name], {})[part] = value
        groups = loaded[f"{self._name}.param_groups"]
        present = self._optimizer.state_dict()["param_groups"]
        if len(groups) != len(present):
            raise CheckpointError(
                f"the optimizer {self._name!r} has {len(present)} parameter groups, "
                f"the checkpoint {len(groups)}; build it as it was when it was saved"
            )
        merged = [
            {**group, "params": now["params"]} for group, now in zip(groups, present, strict=True)
        ]
        self._optimizer.load_state_dict({"state": state, "param_groups": merged})


def _room_for(description: TensorStorageMetadata, parameter: torch.Tensor) -> torch.Tensor:
    dtype = description.properties.dtype
    if description.size == parameter.size():
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    # Counters and the like. Optimizers keep them on the CPU, or move them when they take them over.
    return torch.empty(description.size, dtype=dtype)


class _StatefulEntry:
    def __init__(self, name: str, owner: Any) -> None:
        self._name = name
        self._owner = owner

    def state(self) -> State:
        return {self._name: self._owner.state_dict()}

    def wanted(self, stored: Mapping[str, object]) -> State:
        return {self._name: None}

    def restore(self, loaded: State) -> None:
        self._owner.load_state_dict(loaded[self._name])


class _ValueEntry:
    def __init__(self, name: str, entries: MutableMapping[str, Any]) -> None:
        self._name = name
        self._entries = entries

    def state(self) -> State:
        return {self._name: self._entries[self._name]}

    def wanted(self, stored: Mapping[str, object]) -> State:
        return {self._name: None}

    def restore(self, loaded: State) -> None:
        self._entries[self._name] = loaded[self._name]


class Entries:
    """The entries of a ``Checkpointer``."""

    def __init__(self, entries: MutableMapping[str, Any]) -> None:
        """Sorts the entries by what they are.

        Args:
            entries: modules, optimizers, anything with ``state_dict`` and ``load_state_dict``, and
                plain values by name. Plain values are replaced in the mapping when one is loaded.

        Raises:
            CheckpointError: an entry is none of these.
        """
        self._entries = entries
        self._parts: dict[str, _Entry] = {}
        names = _parameter_names(entries)
        for name, value in entries.items():
            self._parts[name] = _part(name, value, entries, names)

    def state(self, *, first: bool) -> State:
        """What this rank contributes to a checkpoint.

        Args:
            first: this is rank 0, whose values count for what is not a tensor.

        Raises:
            CheckpointError: a value could not be loaded again without running code.
        """
        flat: State = {}
        for part in self._parts.values():
            for key, value in part.state().items():
                if isinstance(value, torch.Tensor):
                    flat[key] = value
                elif first:
                    _check_plain(key, value)
                    flat[key] = value
        return flat

    def wanted(self, where: str, metadata: Metadata) -> State:
        """Where the content of a checkpoint is to go.

        Args:
            where: path of the checkpoint, for errors.
            metadata: what it contains.

        Raises:
            CheckpointError: it does not fit the entries; the message names what differs.
        """
        stored = metadata.state_dict_metadata
        flat: State = {}
        for part in self._parts.values():
            flat.update(part.wanted(stored))
        missing, surplus = sorted(flat.keys() - stored.keys()), sorted(stored.keys() - flat.keys())
        if missing or surplus:
            raise CheckpointError(
                f"{where} does not fit this program:"
                + (f" it lacks {_few(missing)};" if missing else "")
                + (f" it also has {_few(surplus)};" if surplus else "")
                + " restore the entries or use another directory"
            )
        for key, target in flat.items():
            _check_shape(where, key, target, stored[key])
        return flat

    def restore(self, loaded: State) -> None:
        """Gives everything loaded to its owner.

        Raises:
            CheckpointError: an owner refuses it.
        """
        for name, part in self._parts.items():
            mine = {k: v for k, v in loaded.items() if k == name or k.startswith(f"{name}.")}
            part.restore(mine)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the user gave, in order."""
        return tuple(self._parts)


def _part(
    name: str, value: Any, entries: MutableMapping[str, Any], parameter_names: Mapping[int, str]
) -> _Entry:
    if not name or "." in name:
        raise CheckpointError(f"the entry {name!r} needs a name without a dot")
    if isinstance(value, torch.nn.Module):
        return _ModuleEntry(name, value)
    if isinstance(value, torch.optim.Optimizer):
        return _OptimizerEntry(name, value, parameter_names)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _StatefulEntry(name, value)
    _check_plain(name, value)
    return _ValueEntry(name, entries)


def _parameter_names(entries: Mapping[str, Any]) -> dict[int, str]:
    return {
        id(parameter): f"{entry}.{name}"
        for entry, module in entries.items()
        if isinstance(module, torch.nn.Module)
        for name, parameter in unwrapped(module).named_parameters()
    }


def _check_plain(where: str, value: object) -> None:
    """Refuses what a load without running code could not bring back, while it can be mended."""
    kind = type(value)
    if kind in _ATOMS or kind in (torch.Tensor, torch.nn.Parameter):
        return
    if kind in (dict, OrderedDict):
        for key, item in value.items():  # type: ignore[attr-defined]
            _check_plain(where, key)
            _check_plain(f"{where}[{key!r}]", item)
    elif kind in (list, tuple, set):
        for index, item in enumerate(value):  # type: ignore[arg-type]
            _check_plain(f"{where}[{index}]", item)
    else:
        raise CheckpointError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be loaded without "
            "running code; give plain values (numbers, strings, tensors, lists, dicts) "
            "or an object with state_dict and load_state_dict"
        )


def _check_shape(where: str, key: str, target: object, stored: object) -> None:
    if isinstance(target, torch.Tensor) == isinstance(stored, BytesStorageMetadata):
        raise CheckpointError(f"{where} has another kind of value than this program under {key}")
    if isinstance(stored, TensorStorageMetadata) and isinstance(target, torch.Tensor):
        if stored.size != target.size():
            raise CheckpointError(
                f"{where} has {key} with shape {tuple(stored.size)}, "
                f"this program with {tuple(target.size())}"
            )


def _few(keys: Iterable[str], limit: int = 3) -> str:
    keys = list(keys)
    shown = ", ".join(keys[:limit])
    return shown if len(keys) <= limit else f"{shown} and {len(keys) - limit} more"
