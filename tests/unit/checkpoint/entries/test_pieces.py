"""What ranks hold together in pieces can be held by other ranks in another world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.checkpoint.entries.flat_state import Entries
from elastic_runtime.checkpoint.entries.per_rank_values import RankPosition
from elastic_runtime.checkpoint.entries.pieces import InPieces
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import CheckpointError
from tests.checkpoints import write

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path


class Letters(InPieces):
    """Of which each rank has some."""

    def __init__(self, letters: str = "") -> None:
        self.values: dict[str, Any] = {letter: [ord(letter)] for letter in letters}
        self.offered: list[str] = []
        self.needs = ""

    def own_pieces(self) -> dict[str, Any]:
        return self.values

    def needed_pieces(self, saved: Collection[str]) -> Collection[str]:
        self.offered = sorted(saved)
        return list(self.needs)

    def take_pieces(self, pieces: Mapping[str, Any]) -> None:
        self.values = dict(pieces)


def loaded(folder: Path, ranks: list[str], needs: str, *, strict: bool = True) -> list[str]:
    """Loads what these ranks have saved; returns the entries that begin anew."""
    storage = LocalStorage(folder)
    storage.prepare()
    which = write(storage, [Entries({"x": Letters(own)}).state(r) for r, own in enumerate(ranks)])
    letters = Letters()
    letters.needs = needs
    loading = LoadRun(storage, which, Entries({"x": letters}), RankPosition(1, 5), strict=strict)
    loading.prepare()
    loading.read()
    again = loading.restore()
    if not again:
        assert letters.offered == sorted("".join(ranks))
        assert letters.values == {letter: [ord(letter)] for letter in needs}
    return again


@pytest.mark.parametrize("needs", ["a", "bcd", "e", "abcde", ""])
def test_a_rank_goes_on_with_the_pieces_that_it_needs(tmp_path: Path, needs: str) -> None:
    assert loaded(tmp_path, ["abc", "", "de"], needs) == []


def test_a_checkpoint_without_pieces_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it lacks x;"):
        loaded(tmp_path, ["", ""], "a")


def test_pieces_that_are_no_plain_values_are_refused() -> None:
    letters = Letters()
    letters.values = {"a": object()}
    with pytest.raises(CheckpointError, match=r"x\.piece-a is a builtins\.object"):
        Entries({"x": letters}).state(0)
