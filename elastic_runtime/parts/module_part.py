"""A module: its parameters, its buffers, and the extra state that some modules have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.parts.json_tensors import copied
from elastic_runtime.parts.part import Flat, StatePart, differing, of_all_ranks, same_keys
from elastic_runtime.parts.tensor_form import TensorForm
from elastic_runtime.parts.tensor_memory import TensorCopies, local_tensor
from elastic_runtime.parts.wrappers import unwrapped
from elastic_runtime.system.torch_formats import loads_plainly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elastic_runtime.parts.part import Elsewhere
    from elastic_runtime.parts.per_rank import RankPosition

_UNINITIALIZED = (
    torch.nn.parameter.UninitializedParameter,
    torch.nn.parameter.UninitializedBuffer,
)


class ModulePart(StatePart):
    """A module. Another rank also gets the buffers that its state dict leaves out.

    Attributes:
        remembered: the parameters as of the last snapshot.
        restless, on_trial: ids of parameters that a snapshot copies, like buffers: those that are
            known to change outside of an optimizer, and those that may.
    """

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        super().__init__(name)
        self.module = unwrapped(module)
        self._prefix, self._extra_key = f"{name}.", f"{name}:extra"
        self._shadow = False
        self.remembered: list[torch.Tensor] = []
        self.restless: set[int] = set()
        self.on_trial: set[int] = set()
        self._copies = TensorCopies()
        self._buffers: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._extra: dict[str, Any] = {}
        self._with_extra: dict[str, torch.nn.Module] = {}

    # Saved

    def saved(self, rank: int) -> Flat:
        state = self.module.state_dict()
        return of_all_ranks({self._prefix + key: value for key, value in state.items()}, rank)

    def wanted(self, stored: Mapping[str, Elsewhere], place: RankPosition) -> Flat:
        return self.saved(0)

    def restore(self, loaded: Flat, place: RankPosition) -> bool:
        expected = self.module.state_dict()
        state = {key.removeprefix(self._prefix): value for key, value in loaded.items()}
        if state.keys() == expected.keys() and loads_plainly(self.module):
            own = _memory(self.module)
            if all(own.get(key, ()) == _address(value) for key, value in state.items()):
                return True  # everything was read to where it belongs
        # For hooks, for what is no tensor, and for tensors that the module only makes to be saved.
        self.module.load_state_dict(state, strict=state.keys() == expected.keys())
        return True

    def may_differ(self) -> set[str]:
        named = self.module.named_buffers(remove_duplicate=False)
        return {self._prefix + name for name, _ in named}

    # Remembered

    def keep(self, *, shadow: bool) -> None:
        self._refuse_unfit()
        self._shadow = shadow
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

    def drop_leftovers(self) -> None:
        # The gradients of a broken step must not be added to those of the next.
        for parameter in self.module.parameters():
            parameter.grad = None

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters as they are now, by name."""
        return dict(self.module.named_parameters(remove_duplicate=False))

    # Given to another rank

    def whole(self) -> Flat:
        for module in _walk(self.module):
            _resolve(module._buffers)
        own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        extra = {name: m.get_extra_state() for name, m in self._find_extra().items()}
        return {**{self._prefix + n: t for n, t in own.items()}, self._extra_key: extra}

    def check(self, there: Flat) -> None:
        here = self.whole()
        same_keys(f"the tensors of {self.name!r}", here, there)
        what = f"the extra state of {self.name!r}"
        same_keys(what, here[self._extra_key], there[self._extra_key])
        for key, form in there.items():
            if key != self._extra_key and (own := TensorForm.of(here[key])) != form:
                raise differing(key, str(own), str(form))

    def take(self, given: Flat) -> None:
        self._with_extra = self._find_extra()
        for name, state in given[self._extra_key].items():
            self._with_extra[name].set_extra_state(state)

    # Inside

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
                        "its first input; make one forward pass before elastic.run"
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
