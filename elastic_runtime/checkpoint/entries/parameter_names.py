"""What the parameters of a program are called, whichever optimizer has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.worker.state.wrappers import unwrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ParameterNames:
    """The names of the parameters of all modules, also of those that come later."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        """Remembers the modules.

        Args:
            entries: of the ``Checkpointer``, by name.
        """
        self._modules = {k: v for k, v in entries.items() if isinstance(v, torch.nn.Module)}
        self._known: dict[torch.Tensor, str] = {}

    def of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        """The name of each, with that of its entry; "" for one that is in no module."""
        if any(parameter not in self._known for parameter in parameters):
            self._known = {
                parameter: f"{entry}.{name}"
                for entry, module in self._modules.items()
                for name, parameter in unwrapped(module).named_parameters()
            }
        return [self._known.get(parameter, "") for parameter in parameters]
