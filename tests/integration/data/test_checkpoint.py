"""The position of a loader in a checkpoint, and other data than it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.training import run_loop
from elastic_runtime.worker import context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _fresh_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job without an agent listens to SIGTERM; the tests' own process must not."""
    monkeypatch.setattr(context, "_context", None)
    yield
    context.context().refuse_leave_requests()


def resumed(folder: Path, steps: int, *, strict: bool = True, **objects: Any) -> elastic.State:
    """Trains up to so many steps."""
    run_loop._ran = False
    state = elastic.State(**objects)
    state.checkpoints(folder)
    with state.resumed(strict=strict):
        while state.step < steps:
            for _ in objects["loader"].steps(steps=steps):
                state.commit()
    return state


def loader_of(size: int) -> elastic.DataLoader:
    return elastic.DataLoader(range(size), 4)


def test_a_loader_goes_on_where_it_was(tmp_path: Path) -> None:
    resumed(tmp_path, 4, loader=loader_of(12))
    loader = loader_of(12)
    assert resumed(tmp_path, 4, loader=loader).step == 4
    assert (loader.epoch, loader.cursor) == (1, 4)


def test_other_data_are_refused_when_the_job_resumes(tmp_path: Path) -> None:
    resumed(tmp_path, 1, loader=loader_of(12), model="trained")
    with pytest.raises(UsageError, match="12 samples, this one has 13"):
        resumed(tmp_path, 1, loader=loader_of(13), model="")


def test_an_epoch_can_be_given_up(tmp_path: Path) -> None:
    """What docs/data.md says to do after that error."""
    resumed(tmp_path, 4, loader=loader_of(12), model="trained")
    run_loop._ran = False
    loader = loader_of(13)
    state = elastic.State(loader_2=loader, model="")
    state.checkpoints(tmp_path)
    with state.resumed(strict=False):
        assert (state.step, state.model) == (4, "trained")
        loader.go_to(2)
        seen = []
        for step in loader.steps(epochs=3):
            seen += [int(index) for piece in step for index in piece]
            state.commit()
    assert sorted(seen) == list(range(13))
