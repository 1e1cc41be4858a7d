"""An optimizer: its state by the names of the parameters, and the settings of their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.parts.json_tensors import copied
from elastic_runtime.parts.part import Flat, StatePart, differing, few, of_all_ranks
from elastic_runtime.parts.tensor_form import TensorForm
from elastic_runtime.parts.tensor_memory import TensorCopies
from elastic_runtime.parts.wrappers import unwrapped, unwrapped_optimizer
from elastic_runtime.system import torch_private
from elastic_runtime.system.torch_formats import takes_state_plainly

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from elastic_runtime.parts.part import Elsewhere
    from elastic_runtime.parts.per_rank import RankPosition


class ParameterNames:
    """What the parameters of all modules are called, also of those that come later."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        """Remembers the modules, by name."""
        self._modules = modules
        self._known: dict[torch.Tensor, str] = {}

    def of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        """The name of each, with that of its module; "" for one that is in no module."""
        if any(parameter not in self._known for parameter in parameters):
            self._known = {
                parameter: f"{held}.{name}"
                for held, module in self._modules.items()
                for name, parameter in unwrapped(module).named_parameters()
            }
        return [self._known.get(parameter, "") for parameter in parameters]


class OptimizerPart(StatePart):
    """An optimizer."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, names: ParameterNames) -> None:
        super().__init__(name)
        self.optimizer = unwrapped_optimizer(optimizer)
        self._parameter_names = names
        self._prefix = f"{name}.state."
        self._groups_key, self._params_key = f"{name}.param_groups", f"{name}:params"
        self._other_key = f"{name}.other"
        self._shadow = False
        self._groups: list[dict[str, Any]] = []
        self._state: dict[Any, Any] = {}
        self._copies = TensorCopies()

    def hyperparameters(self) -> list[dict[str, Any]]:
        """All that the groups of parameters have, but for the parameters; not copied."""
        groups = self.optimizer.param_groups
        return [{k: v for k, v in g.items() if k != "params"} for g in groups]

    def set_hyperparameters(self, kept: list[dict[str, Any]]) -> None:
        """Goes back to what ``hyperparameters`` has given, and to as many groups."""
        groups = self.optimizer.param_groups
        del groups[len(kept) :]
        for group, each in zip(groups, kept, strict=True):
            for key in group.keys() - each.keys() - {"params"}:
                del group[key]
            _set_group(group, each)

    # Saved

    def saved(self, rank: int) -> Flat:
        flat: Flat = {}
        for name, parameter in self._parameters().items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                flat[f"{self._prefix}{name}.{key}"] = value
        flat[self._groups_key] = self.hyperparameters()
        if other := {k: v for k, v in self.optimizer.state.items() if not torch.is_tensor(k)}:
            flat[self._other_key] = other
        return of_all_ranks(flat, rank)

    def wanted(self, stored: Mapping[str, Elsewhere], place: RankPosition) -> Flat:
        # An optimizer that has made no step has no state yet: the checkpoint says what there is.
        parameters = self._parameters()
        flat: Flat = {self._groups_key: None}
        if self._other_key in stored:
            flat[self._other_key] = None
        for key, description in stored.items():
            name, what = self._split(key, parameters)
            if not name:
                continue
            flat[key] = None
            if isinstance(description, TensorForm):
                present = self.optimizer.state.get(parameters[name], {}).get(what)
                flat[key] = _room_for(description, parameters[name], present)
        return flat

    def restore(self, loaded: Flat, place: RankPosition) -> bool:
        if not loaded:
            return True
        groups = loaded.get(self._groups_key, self.hyperparameters())
        if len(groups) != len(self.optimizer.param_groups):
            raise CheckpointUsageError(
                f"the optimizer {self.name!r} has {len(self.optimizer.param_groups)} parameter "
                f"groups, the checkpoint {len(groups)}; build it as it was when it was saved"
            )
        self._take_state(loaded, groups)
        if takes_state_plainly(self.optimizer):
            for group, kept in zip(self.optimizer.param_groups, groups, strict=True):
                _set_group(group, kept)
        return True

    # Remembered

    def keep(self, *, shadow: bool) -> None:
        self._shadow = shadow
        self._names()  # refuses parameters that are in none of the modules

    def snapshot(self) -> None:
        self._groups = copied(self.hyperparameters())
        if self._shadow:
            self._state = {p: _apart(s) for p, s in self.optimizer.state.items()}
            self._copies.take(
                [v for s in self._state.values() for v in s.values() if torch.is_tensor(v)]
            )

    def roll_back(self) -> None:
        self.set_hyperparameters(self._groups)
        if self._shadow:
            self.optimizer.state.clear()
            self.optimizer.state.update({p: _apart(s) for p, s in self._state.items()})
            self._copies.give_back()

    def drop_leftovers(self) -> None:
        torch_private.forget_scale(self.optimizer)

    def stateless(self) -> list[torch.Tensor]:
        """The parameters that the optimizer has no state of yet."""
        groups, state = self.optimizer.param_groups, self.optimizer.state
        return [p for group in groups for p in group["params"] if not state.get(p)]

    # Given to another rank

    def whole(self) -> Flat:
        return {**self.saved(0), self._params_key: self._names()}

    def check(self, there: Flat) -> None:
        here, others = self._names(), there[self._params_key]
        if here != others:
            raise differing(f"the parameters of {self.name!r}", _in_words(here), _in_words(others))

    def take(self, given: Flat) -> None:
        self._take_state(given, given[self._groups_key])
        self.set_hyperparameters(given[self._groups_key])

    # Inside

    def _parameters(self) -> dict[str, torch.Tensor]:
        """All parameters by name, in the order in which the optimizer numbers them."""
        found = [p for group in self.optimizer.param_groups for p in group["params"]]
        names = self._parameter_names.of(found)
        return {name or f"#{i}": p for i, (name, p) in enumerate(zip(names, found, strict=True))}

    def _names(self) -> list[list[str]]:
        """The names of the parameters of each group.

        Raises:
            UsageError: one has none.
        """
        names = [self._parameter_names.of(g["params"]) for g in self.optimizer.param_groups]
        for number, group in enumerate(names):
            if "" in group:
                at = group.index("")
                shape = tuple(self.optimizer.param_groups[number]["params"][at].shape)
                raise UsageError(
                    f"parameter {at} of group {number} of the optimizer {self.name!r} "
                    f"(shape {shape}) belongs to no module of the State; give the State the module "
                    "that holds it, too. (The inner optimizer of a DiLoCo is left out of the "
                    "State, as is the replica.)"
                )
        return names

    def _split(self, key: str, names: Container[str]) -> tuple[str, str]:
        """The name of the parameter and what of it a key is; "" twice if it is of no parameter."""
        first = len(self._prefix)
        end = len(key) if key.startswith(self._prefix) else 0
        while (end := key.rfind(".", first, end)) > 0:  # there may be dots on both sides
            if (name := key[first:end]) in names:
                return name, key[end + 1 :]
        return "", ""

    def _take_state(self, flat: Flat, groups: list[dict[str, Any]]) -> None:
        """Replaces the state of all parameters, as it was saved: in its types, not theirs."""
        parameters, found = self._parameters(), dict[str, dict[str, Any]]()
        for key, value in flat.items():
            name, what = self._split(key, parameters)
            if name:
                found.setdefault(name, {})[what] = value
        other = flat.get(self._other_key, {})
        if takes_state_plainly(self.optimizer):
            grouped = zip(self.optimizer.param_groups, groups, strict=True)
            settings = {id(p): kept for group, kept in grouped for p in group["params"]}
            state = self.optimizer.state
            state.clear()
            for name, values in found.items():
                p = parameters[name]
                state[p] = {k: _placed(k, v, p, settings[id(p)]) for k, v in values.items()}
            state.update(other)
            return
        numbers = {name: number for number, name in enumerate(parameters)}
        present = self.optimizer.state_dict()["param_groups"]
        merged = [
            {**group, "params": now["params"]} for group, now in zip(groups, present, strict=True)
        ]
        numbered = {numbers[name]: values for name, values in found.items()}
        self.optimizer.load_state_dict({"state": {**numbered, **other}, "param_groups": merged})


def _room_for(stored: TensorForm, parameter: torch.Tensor, present: object) -> torch.Tensor:
    if isinstance(present, torch.Tensor):
        if (tuple(present.shape), present.dtype) == (stored.shape, stored.dtype):
            return present.detach()
    if stored.shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=stored.dtype, requires_grad=False)
    return torch.empty(stored.shape, dtype=stored.dtype, device="cpu")


def _placed(key: str, value: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """A value of an optimizer's state where torch's optimizers look for it."""
    if not isinstance(value, torch.Tensor):
        return value
    if key == "step" and not (group.get("capturable") or group.get("fused")):
        return value  # a counter, which they keep on the CPU
    return value.to(parameter.device)


def _apart(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which tensors stay themselves; their values are kept elsewhere."""
    return {k: v if torch.is_tensor(v) else copied(v) for k, v in values.items()}


def _set_group(group: dict[str, Any], kept: Mapping[str, Any]) -> None:
    for key, value in kept.items():
        present = group.get(key)
        tensors = isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor)
        if present is not None and tensors and present.shape == value.shape:
            present.copy_(value)  # a compiled step may hold on to the tensor of the learning rate
        else:
            group[key] = copied(value)


def _in_words(groups: list[list[str]]) -> str:
    sizes = "+".join(str(len(group)) for group in groups)
    return f"{sizes} in {len(groups)} groups ({few(sorted(n for g in groups for n in g))})"
