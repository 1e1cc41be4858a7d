"""What tests of the adapter share."""

from __future__ import annotations

import pytest

from elastic_runtime.lightning import trainer_parts


@pytest.fixture(autouse=True)
def _many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests begin a job each, and a process may only once."""
    monkeypatch.setattr(trainer_parts, "_has_fitted", False)
