"""Networks for tests, which are skipped where there can be none."""

from __future__ import annotations

import pytest

from tests.partitions.network import why_not


@pytest.fixture(scope="session")
def needs_networks() -> None:
    """Skips the test where there can be none."""
    if reason := why_not():
        pytest.skip(reason)
