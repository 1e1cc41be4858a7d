"""Who of several nodes in one terminal says how the job has ended."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent import launch
from elastic_runtime.agent.launch import has_last_word
from elastic_runtime.config import Siblings
from elastic_runtime.protocol.records import OutcomeRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAMES = ("a", "b", "c")


def _end(failed_on: str) -> OutcomeRecord:
    return OutcomeRecord("life", False, 1, "it failed", node=failed_on)


@pytest.fixture
def siblings() -> Iterator[Siblings]:
    word, put = os.pipe()
    os.set_blocking(word, False)
    os.write(put, b".")
    yield Siblings(NAMES, word)
    os.close(word)
    os.close(put)


def _who_speaks(there: Sequence[str], outcome: OutcomeRecord, siblings: Siblings) -> list[str]:
    """All of them ask at the same time."""
    with ThreadPoolExecutor() as pool:
        asked = {name: pool.submit(has_last_word, name, outcome, siblings) for name in there}
        return [name for name, answer in asked.items() if answer.result()]


@pytest.mark.parametrize("failed_on", NAMES)
def test_the_node_on_which_it_failed_says_so(siblings: Siblings, failed_on: str) -> None:
    assert _who_speaks(NAMES, _end(failed_on), siblings) == [failed_on]


@pytest.mark.parametrize("there", [("a", "c"), ("c",)])
def test_if_that_node_is_dead_or_is_another_of_its_name_one_of_the_others_says_so(
    siblings: Siblings, there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_PRECEDENCE", 0.1)
    assert len(_who_speaks(there, _end("b"), siblings)) == 1


@pytest.mark.parametrize("failed_on", ["d", ""])
@pytest.mark.parametrize("there", [NAMES, ("c", "b"), ("b",)])
def test_of_a_cause_elsewhere_tells_who_comes_first(
    siblings: Siblings, failed_on: str, there: tuple[str, ...]
) -> None:
    """Others may have gone, or know nothing of the round: one tells it all the same."""
    assert [name for name in there if has_last_word(name, _end(failed_on), siblings)] == [there[0]]


def test_who_ends_for_a_reason_of_its_own_says_so(siblings: Siblings) -> None:
    assert all(has_last_word(name, None, siblings) for name in NAMES)


def test_who_is_alone_in_its_terminal_says_everything() -> None:
    assert has_last_word("a", _end("b"), None)
