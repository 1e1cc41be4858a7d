"""Who of several nodes in one terminal says how the job has ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.launch import has_last_word
from elastic_runtime.config import Siblings
from elastic_runtime.protocol.records import OutcomeRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.mark.parametrize("failed_on", NAMES)
def test_the_node_on_which_it_failed_says_so(siblings: Siblings, failed_on: str) -> None:
    assert [name for name in NAMES if has_last_word(name, _end(failed_on), siblings)] == [failed_on]


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
