"""Versions that an adapter was never run with are refused; each adapter has tests of its own."""

from __future__ import annotations

from importlib import metadata

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.trainers.tested_versions import AdapterVersions

VERSIONS = AdapterVersions("trainer", (1, 9), (2, 0), "which may differ")


@pytest.mark.parametrize(
    ("found", "fits"), [("1.8.9", 0), ("1.9", 1), ("1.10.0rc1", 1), ("2.1", 0)]
)
def test_versions_are_compared_as_numbers(
    monkeypatch: pytest.MonkeyPatch, found: str, fits: int
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: found)
    if fits:
        VERSIONS.check("")
        return
    with pytest.raises(UsageError, match=rf"trainer 1\.9 to 2\.0, and this is {found}, which may"):
        VERSIONS.check("")
