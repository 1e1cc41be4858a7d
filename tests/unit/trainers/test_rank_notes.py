"""What ranks tell each other, and how they take turns."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from elastic_runtime.parts.json_tensors import pack_tensor, unpack_tensor
from elastic_runtime.trainers import rank_notes
from elastic_runtime.trainers.rank_notes import RankNotes
from elastic_runtime.trainers.turns import turn

if TYPE_CHECKING:
    from pathlib import Path


class Word(RankNotes):
    """One word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word, self.begins = word, None
        self.shares: list[Any] = []

    def keep(self) -> str:
        return self.word

    def go_back(self, kept: str) -> None:
        self.word = kept

    def for_others(self) -> dict[str, Any]:
        return {"word": self.word}

    def take(self, told: dict[str, Any], *, begins: bool) -> None:
        self.begins = begins
        self.word = told["word"]

    def to_share(self) -> str:
        return self.word

    def take_shared(self, shares: list[str]) -> None:
        self.shares = shares


def test_others_are_told_of_the_commit_and_not_of_what_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a new rank takes over must be what all others go on from.
    told: list[dict[str, Any]] = []

    class Meeting:
        """Two ranks, of which the other one is new."""

        rank = 0

        def __init__(self, group: Any) -> None:
            self.asked = 0

        def gather(self, value: Any) -> list[Any]:
            self.asked += 1
            told.append(value)
            return [value, [False, None] if self.asked == 1 else None]

    monkeypatch.setattr(rank_notes, "Peers", Meeting)
    monkeypatch.setattr(rank_notes.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(rank_notes.dist, "get_world_size", lambda: 2)
    one = Word("of the commit")
    one.note(3)
    one.word = "of the step that is undone"
    one.enter(3)
    assert told == [[True, "of the commit"], {"word": "of the commit"}]


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


def test_a_note_of_a_commit_that_did_not_come_about_hides_no_other() -> None:
    one = Word("of step 3")
    one.note(3)
    one.word = "of step 4"
    one.note(4)
    one.enter(3)
    assert one.word == "of step 3"


def entered(name: str, kind: str) -> Word:
    """A rank before a round that goes on from step 3."""
    one = Word(name)
    if kind != "new":
        one.enter(2)
    if kind == "noted":
        one.note(3)
        one.word = "of the step that is undone"
    return one


@pytest.mark.parametrize(
    ("kinds", "words", "begin", "shares"),
    [
        (("noted", "noted", "noted"), "abc", [None, None, None], "abc"),
        (("new", "noted", "noted"), "bbc", [False, None, None], "bc"),
        # One that was a commit behind, and has received it, knows nothing of that step.
        (("received", "noted", "new"), "bbb", [False, None, False], "b"),
        (("new", "new", "new"), "aaa", [None, True, True], ""),
    ],
)
def test_who_takes_those_of_whom(
    kinds: tuple[str, ...], words: str, begin: list[bool | None], shares: str
) -> None:
    table = Table(3)
    notes = [entered(name, kind) for name, kind in zip("abc", kinds, strict=True)]

    def meet(rank: int) -> None:
        one = notes[rank]
        goes_on = 3 in one._notes
        if goes_on:
            one.go_back(one._notes[3])
        one._exchange(table.at(rank), goes_on=goes_on)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "".join(one.word for one in notes) == words
    assert [one.begins for one in notes] == begin
    assert "".join(notes[0].shares) == "".join(notes[2].shares) == shares


@pytest.mark.parametrize("everywhere", [False, True])
def test_one_at_a_time(tmp_path: Path, everywhere: bool) -> None:
    directory = str(tmp_path / "runs" / "job")
    inside, most, done = 0, 0, []
    pause = threading.Event()

    def work() -> None:
        nonlocal inside, most
        with turn(directory, everywhere=everywhere):
            inside += 1
            most = max(most, inside)
            pause.wait(0.05)
            inside -= 1
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, len(done)) == (1, 3)
    assert (tmp_path / "runs" / "job.prepare-lock").exists() is everywhere


def test_jobs_do_not_wait_for_each_other(tmp_path: Path) -> None:
    inside = []
    with turn(str(tmp_path / "a")), turn(str(tmp_path / "b")):
        inside.append("both")
    assert inside == ["both"]


def test_a_child_that_lives_on_holds_nobody_up(tmp_path: Path) -> None:
    with turn(str(tmp_path)):
        child = os.fork()
        if child == 0:
            signal.pause()
    again = []
    try:
        with turn(str(tmp_path)):
            again.append(os.waitpid(child, os.WNOHANG))
        assert again == [(0, 0)], "the child has ended too early to hold anything"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor(float("inf")),
        torch.tensor([True, False]),
        torch.tensor([], dtype=torch.float64),
        torch.randn(3, 4).t(),
        torch.tensor(2.5, dtype=torch.bfloat16),
    ],
)
def test_a_tensor_comes_back_as_it_was(tensor: torch.Tensor) -> None:
    back = unpack_tensor(json.loads(json.dumps(pack_tensor(tensor))))
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)
