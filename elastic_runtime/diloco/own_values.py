"""What a rank has changed since the last commit beside its parameters, and keeps.

Counters of the State, the positions of samplers, schedulers of the inner optimizer and the like go
on with each inner step. A change of the world brings a State back to its commit, as all ranks must
have one state; here is what a rank that has kept its own parameters needs besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_runtime.parts import json_tensors
from elastic_runtime.parts.generators import RandomGenerators
from elastic_runtime.parts.optimizer_part import OptimizerPart
from elastic_runtime.parts.other_parts import StatefulPart
from elastic_runtime.parts.tensor_form import TensorForm

if TYPE_CHECKING:
    import torch

    from elastic_runtime.training.state import State


class OwnValues:
    """The counters, generators and state dicts of one rank, as they were at one moment."""

    def __init__(self, state: State) -> None:
        """Takes a copy of the present ones.

        Args:
            state: whose; its modules are left out, and what its optimizers remember.
        """
        self._parts = {
            part.name: json_tensors.copied(part.owner.state_dict()) for part in stateful(state)
        }
        # A scheduler of the outer optimizer moves on after a commit, and changes these.
        self._groups = {
            part.name: json_tensors.copied(part.hyperparameters()) for part in optimizers(state)
        }
        self._counters = {k: json_tensors.copied(v) for k, v in state._values.items()}
        self._generators = RandomGenerators() if state.with_generators else None
        if self._generators is not None:
            self._generators.snapshot()

    def put_back(self, state: State) -> None:
        """Makes them the present ones again."""
        self._load(state, self._parts, self._counters, self._groups)
        if self._generators is not None:
            self._generators.restore()

    def image(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """All but the generators, to be given to another rank: plain JSON, and tensors."""
        tensors: list[torch.Tensor] = []
        meta = {
            "parts": {n: json_tensors.encode(v, n, tensors) for n, v in self._parts.items()},
            "counters": json_tensors.encode(self._counters, "state", tensors),
            "groups": json_tensors.encode(self._groups, "groups", tensors),
        }
        meta["tensors"] = [TensorForm.of(tensor).as_json() for tensor in tensors]
        return meta, tensors

    @classmethod
    def load_image(cls, state: State, meta: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        """Takes over what another rank has given.

        Args:
            state: of this rank.
            meta, tensors: as ``image`` gives them.
        """
        counters, groups = (json_tensors.decode(meta[x], tensors) for x in ("counters", "groups"))
        cls._load(state, cls.decoded(meta, tensors), counters, groups)

    @staticmethod
    def decoded(meta: dict[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
        """The state dicts of an image, by name."""
        return {name: json_tensors.decode(part, tensors) for name, part in meta["parts"].items()}

    @staticmethod
    def _load(
        state: State,
        parts: dict[str, Any],
        counters: dict[str, Any],
        groups: dict[str, list[dict[str, Any]]],
    ) -> None:
        for part in stateful(state):
            if part.name in parts:
                part.owner.load_state_dict(parts[part.name])
        for optimizer in optimizers(state):
            if optimizer.name in groups:
                optimizer.set_hyperparameters(groups[optimizer.name])
        state._values.clear()
        state._values.update(counters)


def stateful(state: State) -> list[StatefulPart]:
    """The parts of a State that are neither modules nor optimizers."""
    return [part for part in state._parts if isinstance(part, StatefulPart)]


def optimizers(state: State) -> list[OptimizerPart]:
    """The optimizers of a State."""
    return [part for part in state._parts if isinstance(part, OptimizerPart)]
