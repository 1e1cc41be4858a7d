"""What tests of the adapter share."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING

import pytest
from accelerate.state import AcceleratorState, GradientState

from elastic_runtime.training import run_loop
from elastic_runtime.transformers import elastic_mixin

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _many_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests begin a job each, and a process may only once; accelerate knows of none before."""
    monkeypatch.setattr(elastic_mixin, "_has_trained", False)
    monkeypatch.setattr(run_loop, "_ran", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(autouse=True, scope="module")
def _nothing_left() -> Iterator[None]:
    """Trainers and loops refer to each other; other tests look at all loaders of the process."""
    yield
    gc.collect()
