"""One loop in one process: what it refuses, what it loads, what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.worker import run_loop

if TYPE_CHECKING:
    from pathlib import Path


def test_what_fits_is_loaded_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = torch.nn.Linear(1, 1)
    former = elastic.Checkpointer(tmp_path, {"model": kept, "old": 1})
    former.steps = 7
    former.save(sync=True)
    former.close()

    model, more = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    state = elastic.State(model=model, more=more)

    def run(**options: Any) -> tuple[int, float]:
        monkeypatch.setattr(run_loop, "_ran", False)
        ckpt = elastic.Checkpointer(tmp_path, {"model": model, "more": more})
        try:
            return elastic.run(
                lambda world: (state.step, model.weight.item()), state, ckpt, **options
            )
        finally:
            ckpt.close()

    with pytest.raises(UsageError, match=r"in place with elastic\.run\(\.\.\., strict=False\)"):
        run()
    assert run(strict=False) == (7, kept.weight.item())
