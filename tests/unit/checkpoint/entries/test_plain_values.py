"""What can be loaded again without running code is let through; all else is refused by name."""

from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from elastic_runtime.checkpoint.entries.plain_values import check_plain
from elastic_runtime.errors import CheckpointUsageError

Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "value",
    [
        None,
        1.5,
        "text",
        b"bytes",
        3 + 4j,
        torch.Size([2]),
        torch.float16,
        torch.device("cpu"),
        torch.ones(2),
        [1, (2, {"a": {3}})],
        OrderedDict(a=1),
        Counter("aab"),
    ],
)
def test_what_loads_plainly_is_what_is_allowed(value: Any, tmp_path: Any) -> None:
    check_plain("best", value)
    torch.save(value, tmp_path / "it")
    loaded = torch.load(tmp_path / "it", weights_only=True)
    assert type(loaded) is type(value)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Pair(1, 2), "best is a .*Pair"),
        ({"f": [0, len]}, r"best\['f'\]\[1\] is a builtins\.builtin_function_or_method"),
        ({object(): 1}, r"best is a builtins\.object"),
        (True.__class__, r"best is a builtins\.type"),
    ],
)
def test_what_needs_code_is_named_by_its_place(value: Any, what: str) -> None:
    with pytest.raises(CheckpointUsageError, match=f"{what}.*plain values"):
        check_plain("best", value)
