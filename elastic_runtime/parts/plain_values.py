"""Which values can be kept: those that are loaded without running code."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from typing import Any

import torch

from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.parts import json_tensors

# What ``torch.load(weights_only=True)`` reads back as it was.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)

# A longer one is written in a form that such a load refuses.
_INT_BITS = 2000


def check_plain(where: str, value: object) -> None:
    """Refuses what a load without running code could not bring back, while it can be corrected."""
    kind = type(value)
    if kind is int and value.bit_length() > _INT_BITS:  # type: ignore[attr-defined]
        raise CheckpointUsageError(
            f"{where} is a number of {value.bit_length()} bits, and none of more than "  # type: ignore[attr-defined]
            f"{_INT_BITS} can be loaded again; keep it as text"
        )
    if kind in _ATOMS or kind in (torch.Tensor, torch.nn.Parameter):
        return
    if kind in (dict, OrderedDict, Counter):
        for key, item in value.items():  # type: ignore[attr-defined]
            check_plain(where, key)
            check_plain(f"{where}[{key!r}]", item)
    elif kind in (list, tuple, set):
        for index, item in enumerate(value):  # type: ignore[arg-type]
            check_plain(f"{where}[{index}]", item)
    else:
        raise CheckpointUsageError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be loaded without "
            "running code; give plain values (numbers, strings, tensors, lists, dicts) "
            "or an object with state_dict and load_state_dict"
        )


def plain_value(value: Any, where: str) -> Any:
    """A value of a State as it is kept: a number of NumPy as one of Python.

    Args:
        value: of the user.
        where: what it is called in an error.

    Raises:
        UsageError: it could not be given to another rank, or not be loaded again.
    """
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        value = value.item()
    try:
        json_tensors.check(value, where)
        check_plain(where, value)
    except RecursionError:
        raise UsageError(f"{where} holds itself, or is too deep; keep plain values") from None
    return value
