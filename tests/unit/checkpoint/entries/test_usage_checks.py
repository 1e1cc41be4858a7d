"""A checkpointer that is used wrongly says what to write instead."""

from __future__ import annotations

import pytest

from elastic_runtime.checkpoint.entries.usage_checks import check_arguments
from elastic_runtime.errors import CheckpointUsageError


@pytest.mark.parametrize(
    ("entries", "on_save_error", "message"),
    [
        ([1], "raise", "this is a list"),
        ({1: 2}, "raise", "1 is none"),
        ({"a": 1}, "ignore", "on_save_error='ignore' is not understood"),
    ],
)
def test_wrong_arguments(entries: object, on_save_error: object, message: str) -> None:
    with pytest.raises(CheckpointUsageError, match=message):
        check_arguments(entries, on_save_error)


@pytest.mark.parametrize("on_save_error", ["continue", "raise"])
def test_right_arguments(on_save_error: str) -> None:
    check_arguments({"model": 1}, on_save_error)
