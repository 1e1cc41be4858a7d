"""What is known of a tensor that is elsewhere: in a checkpoint, or on another rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The form of a tensor.

    Attributes:
        shape: sizes of all dimensions.
        dtype: of its elements.
        device: the kind of device, such as ``cuda``, whichever of that kind it is; "": any.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str = ""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorForm:
        """That of a tensor of this rank."""
        return TensorForm(tuple(tensor.shape), tensor.dtype, tensor.device.type)

    @property
    def nbytes(self) -> int:
        """Its size without gaps."""
        itemsize: int = self.dtype.itemsize
        return math.prod(self.shape) * itemsize

    def empty(self) -> torch.Tensor:
        """Room for such a tensor, on the CPU."""
        import torch

        return torch.empty(self.shape, dtype=self.dtype, device="cpu")

    def as_json(self) -> list[Any]:
        """For ``from_json``."""
        return [list(self.shape), str(self.dtype).removeprefix("torch."), self.device]

    @classmethod
    def from_json(cls, content: list[Any]) -> TensorForm:
        """What ``as_json`` has given on another rank."""
        import torch

        shape, dtype, device = content
        return TensorForm(tuple(shape), getattr(torch, dtype), device)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)} on {self.device}"
