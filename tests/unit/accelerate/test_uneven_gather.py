"""What ranks have of training data is gathered whole, however unequal their shares are.

Rows of any number are gathered in tests/integration/accelerate, by real ranks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elastic_runtime.accelerate import uneven_gather
from elastic_runtime.accelerate.uneven_gather import gather_shares, shares_of
from elastic_runtime.errors import UsageError


class Ranks:
    """Each rank gathers in turn; the last one gets what all have given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
        self.world = world
        self._given: list[Any] = []
        self._calls = 0
        self._rounds: list[list[Any]] = []
        monkeypatch.setattr(uneven_gather, "gather", self._gather)
        monkeypatch.setattr(uneven_gather, "gather_object", self._gather)

    def _gather(self, data: Any) -> Any:
        if self._calls == len(self._rounds):
            self._rounds.append([])
        given = self._rounds[self._calls]
        self._calls += 1
        given.append(data)
        if not torch.is_tensor(data):
            return [one for each in given for one in each]
        assert len({one.shape for one in given}) == 1, "gloo would end the process"
        missing = self.world - len(given)  # which nobody looks at
        rows = [one if one.ndim else one[None] for one in given]
        return torch.cat([*rows, *[torch.zeros_like(rows[0])] * missing])

    def begin(self) -> None:
        """The next rank."""
        self._calls = 0


@pytest.mark.parametrize(("samples", "shares"), [(8, [3, 3, 2]), (6, [2, 2, 2]), (2, [1, 1, 0])])
def test_each_sample_comes_once(
    monkeypatch: pytest.MonkeyPatch, samples: int, shares: list[int]
) -> None:
    assert shares_of(samples, 3) == shares
    ranks, first = Ranks(monkeypatch, 3), 0
    for rank, share in enumerate(shares):
        own = torch.arange(first, first + max(1, share))[:, None]
        ranks.begin()
        found = gather_shares({"x": own}, shares, rank, as_objects=False)
        first += share
    assert found["x"][:, 0].tolist() == list(range(samples))


def test_objects_of_a_rank_without_a_share_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, 3)
    for rank, word in enumerate("abb"):
        ranks.begin()
        found = gather_shares([word], [1, 1, 0], rank, as_objects=False)
    assert found == ["a", "b"]


def test_other_numbers_of_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="got 1 rows, and this rank has 3 of the batch's 8"):
        gather_shares(torch.ones(1), [3, 3, 2], 0, as_objects=False)
