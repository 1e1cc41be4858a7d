"""Who takes what from whom, when a round begins."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from elastic_runtime.trainers.rank_notes import RankNotes


class Word(RankNotes):
    """One word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word, self.kept, self.begins = word, word, None

    def keep(self) -> None:
        self.kept = self.word

    def go_back(self) -> None:
        self.word = self.kept

    def for_others(self) -> dict[str, Any]:
        return {"word": self.word}

    def take(self, told: dict[str, Any], *, begins: bool) -> None:
        self.begins = begins
        self.word = told["word"]


def test_who_goes_on_goes_back_to_the_commit() -> None:
    one = Word("first")
    one.note(3)
    one.word = "of the step that is undone"
    one.enter(3)
    assert one.word == "first"


def test_a_step_that_was_adopted_keeps_what_it_has() -> None:
    one = Word("first")
    one.note(3)
    one.word = "of the step that counts"
    one.enter(4)
    assert one.word == "of the step that counts"


def test_what_was_loaded_stays() -> None:
    one = Word("anew")
    one.load_state_dict({"word": "saved"})
    one.enter(7)
    assert (one.word, one.begins) == ("saved", False)
    one.word = "later"
    one.enter(7)
    assert one.word == "saved"


class Table:
    """Where some threads put what each has for all."""

    def __init__(self, size: int) -> None:
        self._met = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def at(self, rank: int) -> Any:
        """The place of one rank."""
        place = type("Place", (), {})()
        place.rank, place.gather = rank, lambda value: self._gather(rank, value)
        return place

    def _gather(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._met.wait(20)
        found = list(self._values)
        self._met.wait(20)
        return found


@pytest.mark.parametrize(
    ("steps", "words", "begin"),
    [
        ((3, 3, 3), ["a", "b", "c"], [None, None, None]),
        ((None, 3, 3), ["b", "b", "c"], [False, None, None]),
        ((None, 2, None), ["b", "b", "b"], [False, None, False]),
        ((None, None, None), ["a", "a", "a"], [None, True, True]),
    ],
)
def test_a_new_rank_takes_those_of_the_lowest_that_goes_on(
    steps: tuple[int | None, ...], words: list[str], begin: list[bool | None]
) -> None:
    table = Table(3)
    notes = [Word(name) for name in "abc"]
    for one, step in zip(notes, steps, strict=True):
        if step is not None:
            one.note(step)

    def meet(rank: int) -> None:
        notes[rank]._exchange(table.at(rank), holds=notes[rank]._step in (3, 2))

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.word for one in notes] == words
    assert [one.begins for one in notes] == begin
