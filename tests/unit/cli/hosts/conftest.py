"""What these tests need."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's program is put in the place of our package, and a set PYTHONPATH comes before it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
