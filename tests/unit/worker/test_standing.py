"""Whose memory all ranks go on from: the rules one by one, and the guarantee for any standings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.worker.standing import Condition, Standing, choose

NEW, CLEAN, FINISHED, DIRTY = Condition

standings = st.lists(
    st.builds(Standing, st.integers(0, 5), st.sampled_from(Condition)), min_size=1, max_size=6
)
saves = st.integers(-1, 7)


def ranks(words: str) -> list[Standing]:
    """From ``"4clean 3dirty new"``."""
    found = []
    for word in words.split():
        digits = "".join(filter(str.isdigit, word))
        found.append(Standing(int(digits or 0), Condition[word.removeprefix(digits).upper()]))
    return found


@pytest.mark.parametrize(
    ("where", "saved", "kind", "step", "sources", "adopt"),
    [
        ("new new", -1, "fresh", 0, (0,), False),
        ("new new", 8, "saved", 8, (), False),
        ("4clean 4clean", -1, "memory", 4, (0, 1), False),
        ("new 4clean", 4, "memory", 4, (1,), False),
        ("3clean 4clean", 2, "memory", 4, (1,), False),
        ("4finished 4clean", -1, "memory", 4, (1,), False),
        ("3finished 4clean", -1, "memory", 4, (1,), False),
        ("4finished 4dirty 4finished new", -1, "memory", 5, (0, 2), True),
        ("3finished 4dirty", -1, "memory", 4, (0,), True),
        ("3finished 3clean 4finished", -1, "memory", 5, (2,), True),
        ("4dirty 3clean", -1, "memory", 3, (1,), False),
        ("4dirty 3clean", 3, "memory", 3, (1,), False),
        ("4dirty 2clean", 3, "saved", 3, (), False),
        ("4dirty 4dirty", 3, "saved", 3, (), False),
        ("4clean new", 5, "saved", 5, (), False),
        ("4dirty new", -1, "lost", 0, (), False),
    ],
)
def test_rules(
    where: str, saved: int, kind: str, step: int, sources: tuple[int, ...], adopt: bool
) -> None:
    choice = choose(ranks(where), saved)
    assert (choice.kind, choice.step, choice.sources, choice.adopt) == (kind, step, sources, adopt)
    assert choice.reason


@given(standings, saves)
def test_a_commit_that_is_clean_or_saved_is_never_lost(where: list[Standing], saved: int) -> None:
    choice = choose(where, saved)
    safe = [s.step for s in where if s.condition is CLEAN] + [saved]
    assert max(safe) <= choice.step or max(safe) < 0


@given(standings, saves)
def test_never_goes_beyond_what_somebody_holds(where: list[Standing], saved: int) -> None:
    choice = choose(where, saved)
    if choice.kind == "saved":
        assert choice.step == saved
    elif choice.kind == "memory":
        committed = max(s.step for s in where if s.condition is not NEW)
        assert choice.step <= committed + choice.adopt
        condition = FINISHED if choice.adopt else CLEAN
        expected = Standing(choice.step - choice.adopt, condition)
        assert choice.sources == tuple(r for r, s in enumerate(where) if s == expected)
        assert choice.sources
    else:
        assert choice.step == 0 and saved < 0


@given(standings, saves)
def test_only_what_nobody_committed_is_adopted_over_a_clean_commit(
    where: list[Standing], saved: int
) -> None:
    choice = choose(where, saved)
    committed = max((s.step for s in where if s.condition is not NEW), default=0)
    if choice.adopt:
        assert Standing(committed, CLEAN) not in where


@given(standings, saves)
def test_every_rank_is_a_source_or_a_receiver(where: list[Standing], saved: int) -> None:
    choice = choose(where, saved)
    assert sorted(choice.sources + choice.receivers) == list(range(len(where)))


@given(standings, saves, st.randoms(use_true_random=False))
def test_the_order_of_ranks_changes_nothing_but_the_names(
    where: list[Standing], saved: int, random: object
) -> None:
    shuffled = list(where)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = choose(where, saved), choose(shuffled, saved)
    assert (one.kind, one.step, one.adopt, one.reason) == (
        other.kind,
        other.step,
        other.adopt,
        other.reason,
    )
    if one.kind == "memory":
        assert len(one.sources) == len(other.sources)


@given(standings, saves)
def test_what_a_new_rank_says_of_its_step_means_nothing(where: list[Standing], saved: int) -> None:
    plain = [Standing(0, NEW) if s.condition is NEW else s for s in where]
    assert choose(plain, saved) == choose(where, saved)


def test_a_step_that_was_done_again_counts_in_the_later_round() -> None:
    stale = Standing(8, CLEAN, round=3)
    again = Standing(8, CLEAN, round=4)
    choice = choose([stale, again, again], -1)
    assert (choice.sources, choice.receivers) == ((1, 2), (0,))


def test_a_step_that_nobody_has_done_again_counts_whoever_brings_it() -> None:
    choice = choose([Standing(8, CLEAN, round=3), Standing(7, CLEAN, round=4)], -1)
    assert (choice.step, choice.sources) == (8, (0,))
