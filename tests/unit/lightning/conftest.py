"""What tests of the adapter share."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.lightning import fit_job

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests begin a job each, and a process may only once."""
    monkeypatch.setattr(fit_job, "_has_fitted", False)


@pytest.fixture(autouse=True, scope="module")
def _nothing_left() -> Iterator[None]:
    """Trainers and loops refer to each other; other tests look at all loaders of the process."""
    yield
    gc.collect()
