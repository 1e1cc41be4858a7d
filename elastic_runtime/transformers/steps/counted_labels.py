"""A number of labels that knows whether a loss has used it.

A ``Trainer`` tells a model how many labels a step has on all ranks, so that its loss can be a sum
by that number. Many models whose ``forward`` takes it all the same give a mean of their own, such
as ``BertForSequenceClassification``: that the number is taken does not say that it is used.
"""

from __future__ import annotations

from typing import Any

import torch

# What asks about a number or moves it, and does not compute with it.
_LEAVES_IT = frozenset(
    "__get__ __set__ __repr__ __hash__ clone contiguous cpu cuda detach dim is_complex "
    "is_floating_point ndimension numel size stride to".split()
)


class CountedLabels(torch.Tensor):  # type: ignore[misc]  # torch has no types
    """The number, as a tensor.

    Attributes:
        uses: not empty once it was computed with; shared with what was made of it by moving it.
    """

    uses: list[bool]

    @staticmethod
    def of(number: Any) -> CountedLabels:
        """A number that nothing has been computed with yet.

        Args:
            number: a number or a tensor with one.
        """
        if isinstance(number, CountedLabels):
            return number
        counted: CountedLabels = torch.as_tensor(number).as_subclass(CountedLabels)
        counted.uses = []
        return counted

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Notes what is done with it; a result is a plain tensor, unless it is the same number."""
        given = (*args, *(kwargs or {}).values())
        source = next((one for one in given if isinstance(one, CountedLabels)), None)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if source is None:
            return result
        uses: list[bool] = source.uses
        if getattr(func, "__name__", "") not in _LEAVES_IT:
            uses.append(True)
        elif torch.is_tensor(result) and result.numel() == 1:
            result = result.as_subclass(CountedLabels)
            result.uses = uses
        return result
