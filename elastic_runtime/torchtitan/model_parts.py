"""The parts of a model and its optimizers as one each, for a checkpoint that knows no stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence


# What activation checkpointing adds to the names of parameters, and not to those of a state dict.
_WRAPPER = "_checkpoint_wrapped_module."


class ModelParts(nn.Module):  # type: ignore[misc]
    """All parts of a model that this rank has; under pipeline parallelism they are its stages.

    The names are those of the whole model, which each part has kept.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        """Puts them together.

        Args:
            parts: without a name in common.
        """
        super().__init__()
        self._parts = tuple(parts)  # not as children: these would add to the names

    def state_dict(self, *given: Any, **named: Any) -> dict[str, Any]:
        """What all parts have, by name."""
        return {k: v for part in self._parts for k, v in part.state_dict(*given, **named).items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *given: Any, **named: Any) -> Any:
        """Gives each part what belongs to it."""
        for part in self._parts:
            own = {key: state_dict[key] for key in part.state_dict() if key in state_dict}
            part.load_state_dict(own, *given, **named)

    def named_parameters(self, *given: Any, **named: Any) -> Any:
        """Of all parts, by the names that they have in ``state_dict``."""
        for part in self._parts:
            for name, parameter in part.named_parameters(*given, **named):
                yield name.replace(_WRAPPER, ""), parameter

    def named_buffers(self, *given: Any, **named: Any) -> Any:
        """Of all parts."""
        for part in self._parts:
            for name, buffer in part.named_buffers(*given, **named):
                yield name.replace(_WRAPPER, ""), buffer


class _States(Mapping[torch.Tensor, Any]):
    """The states of several optimizers; a ``ChainMap`` would add to them, as they have defaults."""

    def __init__(self, states: Sequence[Mapping[torch.Tensor, Any]]) -> None:
        self._states = states

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        for state in self._states:
            if parameter in state:
                return state[parameter]
        raise KeyError(parameter)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (parameter for state in self._states for parameter in state)

    def __len__(self) -> int:
        return sum(len(state) for state in self._states)


class OptimizerParts(torch.optim.Optimizer):  # type: ignore[misc]
    """All optimizers of this rank as one, whose state goes by the names of parameters only.

    How they are grouped depends on the layout (each stage of a pipeline has its own), so that the
    settings of a group are not part of it: they are those of the config, and of the schedule.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Puts them together.

        Args:
            optimizers: without a parameter in common.
        """
        # Not that of the base class: this one has no parameters of its own.
        self._optimizers = tuple(optimizers)

    def register_step_pre_hook(self, hook: Any) -> Any:
        """Of each of them; the hook is called with that."""
        return [one.register_step_pre_hook(hook) for one in self._optimizers]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group of all parameters, without settings."""
        groups = [group for one in self._optimizers for group in one.param_groups]
        return [{"params": [parameter for group in groups for parameter in group["params"]]}]

    @property
    def state(self) -> Mapping[torch.Tensor, Any]:
        """Of all of them, by parameter."""
        return _States([one.state for one in self._optimizers])

    def state_dict(self) -> dict[str, Any]:
        """Only how parameters are counted; what belongs to them is in ``state``."""
        count = len(self.param_groups[0]["params"])
        return {"state": {}, "param_groups": [{"params": list(range(count))}]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Gives each of them what belongs to its parameters; their settings stay."""
        first = 0
        for one in self._optimizers:
            own = one.state_dict()
            count = sum(len(group["params"]) for group in own["param_groups"])
            numbers = range(first, first + count)
            saved = state_dict["state"]
            state = {number - first: saved[number] for number in numbers if number in saved}
            one.load_state_dict({"state": state, "param_groups": own["param_groups"]})
            first += count
