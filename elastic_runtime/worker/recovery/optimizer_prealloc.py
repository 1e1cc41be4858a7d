"""Memory for optimizer state, allocated ahead by a new rank that is about to receive it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.parts.tensor_form import TensorForm

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

# Adam and its kin keep two tensors for each parameter. Which optimizer it is shows only after its
# first step, and one that keeps fewer has them for a moment only.
_TENSORS = 2
# Beyond that the transfer itself takes so long that the first touch matters little.
_MOST_BYTES = 1 << 30


class PreallocatedTensors:
    """Tensors on the CPU whose memory pages are already mapped; each is handed out once.

    Each tensor has memory of its own, so that saving one saves nothing else.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        """Allocates memory for the optimizer state of some parameters, up to 1 GiB.

        Args:
            parameters: those that have no optimizer state yet.
        """
        self._free: dict[tuple[str, tuple[int, ...]], list[torch.Tensor]] = {}
        left = _MOST_BYTES
        for parameter in parameters:
            form = TensorForm.of(parameter)
            left -= _TENSORS * form.nbytes
            if left < 0:
                break
            made = [form.empty().zero_() for _ in range(_TENSORS)]
            self._free.setdefault((form.dtype, form.shape), []).extend(made)

    def take(self, form: TensorForm) -> torch.Tensor:
        """A tensor of this form, on the CPU; its content is of no meaning."""
        free = self._free.get((form.dtype, form.shape))
        return free.pop() if free else form.empty()
