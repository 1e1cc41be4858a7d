"""Loaders for evaluations, shared out for each world; and what ranks gather of training data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elastic_runtime.accelerate import uneven_gather
from elastic_runtime.accelerate.evaluation_loader import EvaluationLoader
from elastic_runtime.accelerate.uneven_gather import gather_rows


def test_other_data_are_shared_out_once_for_each_world() -> None:
    made: list[list[int]] = []

    def share_out(loader: Any) -> list[int]:
        made.append([*loader][len(made) :])
        return made[-1]

    loader = EvaluationLoader([1, 2, 3], share_out)
    assert (list(loader), len(loader), list(loader)) == ([1, 2, 3], 3, [1, 2, 3])
    assert loader.gives(made[0]) and not loader.gives([1, 2, 3]) and not loader.gives(None)
    loader.enter()
    assert (list(loader), len(made)) == ([2, 3], 2)


@pytest.mark.parametrize("rows", [[3, 3, 2], [2, 2, 2], [1, 4, 1]])
def test_each_row_comes_once_however_many_a_rank_has(
    monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    calls: list[torch.Tensor] = []  # each rank in turn: how many rows it has, and these

    def gather(given: torch.Tensor) -> torch.Tensor:
        calls.append(given)
        if len(calls) % 2:
            return torch.tensor(rows)
        return torch.cat([*calls[1::2], *[given] * (3 - len(calls) // 2)])

    monkeypatch.setattr(uneven_gather, "gather", gather)
    first = 0
    for own in rows:
        found = gather_rows({"x": torch.arange(first, first + own)[:, None]}, 3)
        first += own
    assert found["x"][:, 0].tolist() == list(range(sum(rows)))
    assert len({given.shape for given in calls[1::2]}) == 1, "gloo would end the process"
