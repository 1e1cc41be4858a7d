"""The parts of a model as one module, for a checkpoint that does not know of stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        """Of all parts."""
        for part in self._parts:
            yield from part.named_parameters(*given, **named)

    def named_buffers(self, *given: Any, **named: Any) -> Any:
        """Of all parts."""
        for part in self._parts:
            yield from part.named_buffers(*given, **named)
