"""The parts of a ``State``: modules, optimizers and what else has a state dict.

Each part can remember its state and go back to it (``snapshot``, ``roll_back``), and can describe
it as a tree of plain values and tensors, and take one over from another rank (``tree``, ``load``).
Optimizer state goes by the names of the parameters, not by their numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.system import torch_private
from elastic_runtime.worker.state.json_tensors import copied
from elastic_runtime.worker.state.tensor_copies import TensorCopies
from elastic_runtime.worker.state.wrappers import unwrapped, unwrapped_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_UNINITIALIZED = (
    torch.nn.parameter.UninitializedParameter,
    torch.nn.parameter.UninitializedBuffer,
)

# Of plain values, lists, dicts and tensors.
Tree = dict[str, Any]


class TensorNumber(int):
    """The number of a tensor, in a tree that is to hold it."""


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What must be alike in the tensors of two ranks.

    Attributes:
        dtype: such as ``float32``.
        shape: sizes of all dimensions.
        device: the kind of device, such as ``cuda``, whichever of that kind it is.
    """

    dtype: str
    shape: tuple[int, ...]
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorForm:
        """The form of a tensor."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(dtype, tuple(tensor.shape), tensor.device.type)

    @property
    def nbytes(self) -> int:
        """Its size without gaps."""
        itemsize: int = getattr(torch, self.dtype).itemsize
        return math.prod(self.shape) * itemsize

    def empty(self) -> torch.Tensor:
        """Room for such a tensor, on the CPU."""
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device="cpu")

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} on {self.device}"


class StatePart(Protocol):
    """One of the objects that a State was given."""

    name: str

    def snapshot(self) -> None:
        """Remembers the present state as that of the last commit."""

    def roll_back(self) -> None:
        """Goes back to the last commit."""

    def drop_leftovers(self) -> None:
        """Drops what a step that was broken off has left and no state dict contains."""

    def tree(self) -> Tree:
        """The whole state; tensors are those in use, not copies."""

    def check(self, forms: Tree) -> None:
        """Raises UsageError if a tree with tensors of these forms does not fit this part."""

    def own_tensors(self, slots: Tree) -> Iterator[tuple[TensorNumber, torch.Tensor, bool]]:
        """The tensors here that take the place of those of another rank's tree.

        Args:
            slots: the other rank's tree, with a ``TensorNumber`` for each tensor.

        Yields:
            The slot, the tensor that is kept here for it, and whether all ranks of one commit
            have the same value there: a buffer may differ from rank to rank, a parameter not.
        """

    def load(self, tree: Tree) -> None:
        """Takes a tree over; the values of the tensors in ``own_tensors`` are in place already."""


class ModulePart:
    """A module: parameters and all buffers, also those that its state dict leaves out.

    Attributes:
        remembered: the parameters as of the last snapshot.
        restless, on_trial: ids of parameters that a snapshot copies, like buffers: those that are
            known to change outside of an optimizer, and those that may.
    """

    def __init__(self, name: str, module: torch.nn.Module, *, shadow: bool) -> None:
        self.name = name
        self.module = unwrapped(module)
        self._refuse_unfit()
        self._shadow = shadow
        self.remembered: list[torch.Tensor] = []
        self.restless: set[int] = set()
        self.on_trial: set[int] = set()
        self._copies = TensorCopies()
        self._buffers: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._extra: dict[str, Any] = {}
        self._with_extra = self._find_extra()

    def snapshot(self) -> None:
        # A step may put another tensor in a buffer's place, or make a new one.
        self._buffers, self.remembered = [], []
        tensors: list[torch.Tensor] = []
        for module in _walk(self.module):  # once, as each commit does it
            if buffers := module._buffers:
                _resolve(buffers)
                tensors.extend(b for b in buffers.values() if b is not None)
            self._buffers.append((buffers, buffers.copy()))
            if module._parameters:
                self.remembered.extend(p for p in module._parameters.values() if p is not None)
        if self._shadow:
            tensors.extend(self.remembered)
        elif self.restless or self.on_trial:
            some = self.restless | self.on_trial
            tensors.extend(p for p in self.remembered if id(p) in some)
        self._copies.take(tensors)
        self._extra = {n: copied(m.get_extra_state()) for n, m in self._with_extra.items()}

    def roll_back(self) -> None:
        for buffers, kept in self._buffers:
            buffers.clear()
            buffers.update(kept)
        self._copies.give_back()
        for name, state in self._extra.items():
            self._with_extra[name].set_extra_state(copied(state))

    def copy_all(self) -> None:
        """Has each snapshot copy all parameters from now on."""
        self._shadow = True

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters as they are now, by name."""
        return dict(self.module.named_parameters(remove_duplicate=False))

    def drop_leftovers(self) -> None:
        # The gradients of a broken step must not be added to those of the next.
        for parameter in self.module.parameters():
            parameter.grad = None

    def tree(self) -> Tree:
        for module in _walk(self.module):
            _resolve(module._buffers)
        return {
            "parameters": dict(self.module.named_parameters()),
            "buffers": dict(self.module.named_buffers()),
            "extra": {n: m.get_extra_state() for n, m in self._find_extra().items()},
        }

    def check(self, forms: Tree) -> None:
        here = self.tree()
        for kind in ("parameters", "buffers", "extra"):
            same_keys(f"the {kind} of {self.name!r}", here[kind], forms[kind])
            if kind != "extra":
                for key, form in forms[kind].items():
                    same_form(f"{self.name}.{key}", TensorForm.of(here[kind][key]), form)

    def own_tensors(self, slots: Tree) -> Iterator[tuple[TensorNumber, torch.Tensor, bool]]:
        here = self.tree()
        for kind in ("parameters", "buffers"):
            for key, slot in slots[kind].items():
                yield slot, here[kind][key], kind == "parameters"

    def load(self, tree: Tree) -> None:
        self._with_extra = self._find_extra()
        for name, state in tree["extra"].items():
            self._with_extra[name].set_extra_state(state)

    def _refuse_unfit(self) -> None:
        """Refuses what cannot be remembered, before anything rests on it.

        Raises:
            UsageError: a part of the module is scripted, or has no values yet.
        """
        for name, module in self.module.named_modules(prefix=self.name):
            if isinstance(module, torch.jit.ScriptModule):
                raise UsageError(
                    f"{name} is a scripted module, whose buffers are out of reach; give the State "
                    "the module that it was made of, and take torch.compile instead"
                )
            own = {**dict(module.named_parameters(recurse=False)), **module._buffers}
            for key, tensor in own.items():
                if isinstance(tensor, _UNINITIALIZED):
                    raise UsageError(
                        f"{name}.{key} has no values yet, as {type(module).__qualname__} waits for "
                        "its first input; make one forward pass before the State is made"
                    )

    def _find_extra(self) -> dict[str, torch.nn.Module]:
        plain = torch.nn.Module.get_extra_state
        modules = self.module.named_modules()
        return {name: m for name, m in modules if type(m).get_extra_state is not plain}


def _resolve(buffers: dict[str, torch.Tensor | None]) -> None:
    """Puts plain tensors in the place of buffers that are conjugate or negative views of others.

    Their memory does not hold their values, and it is memory that is copied and sent.
    """
    for name, buffer in buffers.items():
        if buffer is not None and (buffer.is_conj() or buffer.is_neg()):
            buffers[name] = buffer.resolve_conj().resolve_neg()


def _walk(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """All modules once, like ``modules()``, but without the names, which cost each commit time."""
    seen, stack = {module}, [module]
    while stack:
        current = stack.pop()
        yield current
        for child in current._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)


class OptimizerPart:
    """An optimizer: its state by parameter, and its hyperparameters, which schedulers change."""

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        modules: Mapping[str, torch.nn.Module],
        *,
        shadow: bool,
    ) -> None:
        self.name = name
        self.optimizer = unwrapped_optimizer(optimizer)
        self._modules = modules
        self._shadow = shadow
        self._groups: list[Tree] = []
        self._state: dict[Any, Any] = {}
        self._copies = TensorCopies()
        self._names()  # refuses parameters that are in none of the modules

    def hyperparameters(self) -> list[Tree]:
        """All that the groups of parameters have, but for the parameters; not copied."""
        groups = self.optimizer.param_groups
        return [{k: v for k, v in g.items() if k != "params"} for g in groups]

    def set_hyperparameters(self, kept: list[Tree]) -> None:
        """Goes back to what ``hyperparameters`` has given, and to as many groups."""
        groups = self.optimizer.param_groups
        del groups[len(kept) :]
        for group, each in zip(groups, kept, strict=True):
            _set_group(group, each)

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

    def copy_all(self) -> None:
        """Has each snapshot copy all of its state from now on."""
        self._shadow = True

    def stateless(self) -> list[torch.Tensor]:
        """The parameters that the optimizer has no state of yet."""
        groups, state = self.optimizer.param_groups, self.optimizer.state
        return [p for group in groups for p in group["params"] if not state.get(p)]

    def tree(self) -> Tree:
        names = self._names()
        state = self.optimizer.state
        return {
            "state": {names[p]: state[p] for p in names if p in state},
            "other": {k: v for k, v in state.items() if not torch.is_tensor(k)},
            "groups": [
                {**group, "params": [names[p] for p in group["params"]]}
                for group in self.optimizer.param_groups
            ],
        }

    def check(self, forms: Tree) -> None:
        here = [group["params"] for group in self.tree()["groups"]]
        there = [group["params"] for group in forms["groups"]]
        if here != there:
            raise differing(f"the parameters of {self.name!r}", _in_words(here), _in_words(there))

    def own_tensors(self, slots: Tree) -> Iterator[tuple[TensorNumber, torch.Tensor, bool]]:
        here = self.tree()["state"]
        for name, values in slots["state"].items():
            for key, slot in values.items():
                present = here.get(name, {}).get(key)
                if isinstance(slot, TensorNumber) and torch.is_tensor(present):
                    yield slot, present, True

    def load(self, tree: Tree) -> None:
        # Not load_state_dict: that casts the state to the type of the parameter.
        parameters = {name: parameter for parameter, name in self._names().items()}
        state = self.optimizer.state
        state.clear()
        state.update({parameters[name]: values for name, values in tree["state"].items()})
        state.update(tree["other"])
        for group, kept in zip(self.optimizer.param_groups, tree["groups"], strict=True):
            _set_group(group, {k: v for k, v in kept.items() if k != "params"})

    def _names(self) -> dict[torch.Tensor, str]:
        """The names of all parameters of the optimizer, in its order."""
        known = {
            parameter: f"{name}.{key}"
            for name, module in self._modules.items()
            for key, parameter in unwrapped(module).named_parameters()
        }
        names = {}
        for number, group in enumerate(self.optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter not in known:
                    raise UsageError(
                        f"parameter {position} of group {number} of the optimizer {self.name!r} "
                        f"(shape {tuple(parameter.shape)}) belongs to no module of the State; give "
                        "the State the module that holds it, too. (The inner optimizer of a DiLoCo "
                        "is left out of the State, as is the replica.)"
                    )
                names[parameter] = known[parameter]
        return names


def _apart(values: Mapping[str, Any]) -> Tree:
    """A copy in which tensors stay themselves; their values are kept elsewhere."""
    return {k: v if torch.is_tensor(v) else copied(v) for k, v in values.items()}


def _set_group(group: Tree, kept: Tree) -> None:
    for key in group.keys() - kept.keys() - {"params"}:
        del group[key]
    for key, value in kept.items():
        present = group.get(key)
        tensors = isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor)
        if present is not None and tensors and present.shape == value.shape:
            present.copy_(value)  # a compiled step may hold on to the tensor of the learning rate
        else:
            group[key] = copied(value)


class StatefulPart:
    """Anything else with a state dict: a scheduler, a scaler, a sampler."""

    def __init__(self, name: str, owner: Any) -> None:
        self.name = name
        self.owner = owner
        self._kept: Any = None

    def commit(self) -> None:
        """Moves it on, if it moves."""
        if moves(self.owner):
            self.owner.commit()

    def snapshot(self) -> None:
        self._kept = copied(self.owner.state_dict())

    def roll_back(self) -> None:
        self.owner.load_state_dict(copied(self._kept))

    def drop_leftovers(self) -> None:
        # Many scripts have their scaler in an object of their own, which passes its state on.
        for each in (self.owner, *getattr(self.owner, "__dict__", {}).values()):
            if isinstance(each, torch.amp.GradScaler):
                torch_private.forget_scaled_step(each)

    def tree(self) -> Tree:
        tree: Tree = self.owner.state_dict()
        return tree

    def check(self, forms: Tree) -> None:
        pass  # its load_state_dict knows

    def own_tensors(self, slots: Tree) -> Iterator[tuple[TensorNumber, torch.Tensor, bool]]:
        return iter(())

    def load(self, tree: Tree) -> None:
        self.owner.load_state_dict(tree)


def moves(value: Any) -> bool:
    """Whether something moves on with each step, such as a sampler with its cursor."""
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
        return False  # it may have a layer of that name
    return callable(getattr(value, "commit", None))  # else it is, say, the revision of a code


def same_keys(what: str, here: Mapping[str, object], there: Mapping[str, object]) -> None:
    """Raises UsageError if two mappings differ in their keys."""
    if here.keys() != there.keys():
        only_here, only_there = here.keys() - there.keys(), there.keys() - here.keys()
        raise differing(what, f"also {_few(only_here)}", f"also {_few(only_there)}")


def parts_of(named: Mapping[str, Any], *, shadow: bool) -> Iterator[StatePart]:
    """The parts of a State, each made for the kind of its object.

    Args:
        named: the objects.
        shadow: each keeps a copy of all parameters and optimizer state.

    Raises:
        UsageError: an object is of no kind that can be kept.
    """
    modules = {n: value for n, value in named.items() if isinstance(value, torch.nn.Module)}
    for name, value in named.items():
        if name in modules:
            yield ModulePart(name, value, shadow=shadow)
        elif isinstance(value, torch.optim.Optimizer):
            yield OptimizerPart(name, value, modules, shadow=shadow)
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            yield StatefulPart(name, value)
        else:
            raise UsageError(
                f"State({name}=...) is a {type(value).__qualname__} without state_dict and "
                "load_state_dict; give it these two methods, or, if it is a plain value, set "
                f"it afterwards: state.{name} = ..."
            )


def same_form(what: str, here: TensorForm, there: TensorForm) -> None:
    """Raises UsageError if two tensors differ in shape, type or kind of device."""
    if here != there:
        raise differing(what, str(here), str(there))


def differing(what: str, here: str, there: str) -> UsageError:
    """The error for a rank that has been built in another way than the rank it receives from."""
    return UsageError(
        f"models differ between ranks: {what}: {here} here, {there} on the rank that gives its "
        "state; build the same models and optimizers on every rank. Models of which each rank "
        "holds a part (pipeline or expert parallel) do not recover in place: write "
        "elastic.run(train, state, in_place=False)"
    )


def _few(keys: Iterable[str], limit: int = 3) -> str:
    names = sorted(keys)
    shown = ", ".join(names[:limit]) or "nothing"
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _in_words(groups: list[list[str]]) -> str:
    sizes = "+".join(str(len(group)) for group in groups)
    return f"{sizes} in {len(groups)} groups ({_few(name for group in groups for name in group)})"
