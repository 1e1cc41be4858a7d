"""Errors say whose fault they are, and what to write instead of a misspelt name."""

from __future__ import annotations

import pytest

from elastic_runtime import errors
from elastic_runtime.errors import (
    CheckpointError,
    CheckpointFailed,
    DamagedCheckpoint,
    RecordError,
    SaveOverdue,
    did_you_mean,
)


def test_an_error_about_checkpoints_is_the_users_or_the_worlds() -> None:
    with pytest.raises(TypeError, match="whose fault"):
        CheckpointError("no")
    assert DamagedCheckpoint("x").exit_code == errors.EXIT_USAGE
    assert CheckpointFailed("x").exit_code == errors.EXIT_FAILED
    refused = SaveOverdue("x", refused=True)
    assert refused.refused and str(refused) == "x"
    assert not CheckpointFailed("x").refused


def test_a_bad_record_is_named() -> None:
    error = RecordError("nodes/a", "no JSON")
    assert str(error) == "the record 'nodes/a' in the store cannot be used: no JSON"
    assert (error.key, error.why) == ("nodes/a", "no JSON")


def test_the_nearest_name_is_suggested_if_it_is_near() -> None:
    assert did_you_mean("--mni", ["--min", "--max"]) == "; did you mean '--min'?"
    assert did_you_mean("--verbose", ["--min", "--max"]) == ""
