"""Whose memory all ranks go on from: the rules one by one, and the guarantee for any statuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.worker.recovery.recovery_source import (
    MemoryCondition,
    RankStatus,
    StateVersion,
    choose,
    may_be_behind,
)

NEW, CLEAN, FINISHED, DIRTY = MemoryCondition

statuses = st.lists(
    st.builds(
        RankStatus,
        st.integers(0, 5),
        st.sampled_from(MemoryCondition),
        round=st.integers(1, 3),
        term=st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)


def ranks(words: str) -> list[RankStatus]:
    """From ``"4clean 3dirty new 3clean@2/1"``: with the round, and the term that is known."""
    found = []
    for word in words.split():
        body, _, rest = word.partition("@")
        number, _, term = rest.partition("/")
        digits = "".join(filter(str.isdigit, body))
        condition = MemoryCondition[body.removeprefix(digits).upper()]
        found.append(RankStatus(int(digits or 0), condition, int(number or 1), int(term or 0)))
    return found


@pytest.mark.parametrize(
    ("where", "kind", "step", "sources", "adopt"),
    [
        ("new new", "fresh", 0, (0,), False),
        ("4clean 4clean", "memory", 4, (0, 1), False),
        ("new 4clean", "memory", 4, (1,), False),
        ("3clean 4clean", "memory", 4, (1,), False),
        ("4finished 4clean", "memory", 4, (1,), False),
        ("3finished 4clean", "memory", 4, (1,), False),
        ("4finished 4dirty 4finished new", "memory", 5, (0, 2), True),
        ("3finished 4dirty", "memory", 4, (0,), True),
        ("3finished 3clean 4finished", "memory", 5, (2,), True),
        ("4dirty 3clean", "memory", 3, (1,), False),
        ("4dirty new", "lost", 0, (), False),
        # Who was left out is ahead, and nothing was saved without it.
        ("8clean@3/1 7clean@4/1", "memory", 8, (0,), False),
        ("8clean@3/1 8clean@4/1", "memory", 8, (1,), False),
        # The others have fallen back and saved since: the step that it holds is of no use.
        ("8clean@3/1 5clean@4/2", "memory", 5, (1,), False),
        # It had heard of a term, and those who went on had not: nothing was saved in it.
        ("4clean@3/2 9clean@4/1", "memory", 9, (1,), False),
        ("4clean@3/2 3clean@4/1", "memory", 4, (0,), False),
        # Of one round, not all had heard of a term when it broke.
        ("4clean@3/2 5clean@3/1", "memory", 5, (1,), False),
        # Those of the newer term cannot serve.
        ("8clean@3/1 5dirty@4/2", "memory", 8, (0,), False),
    ],
)
def test_rules(where: str, kind: str, step: int, sources: tuple[int, ...], adopt: bool) -> None:
    choice = choose(ranks(where))
    assert (choice.kind.value, choice.step, choice.sources, choice.adopt) == (
        kind,
        step,
        sources,
        adopt,
    )
    assert choice.reason
    assert (choice.in_memory is None) == (kind != "memory")


@pytest.mark.parametrize(
    ("where", "held"),
    [
        ("4clean@3/1", StateVersion(1, 4)),
        ("4clean@3/1 3clean@4/2", StateVersion(2, 3)),
        ("8clean@3/1 5dirty@4/2", StateVersion(1, 8)),  # what is saved in term 2 counts more
        ("4clean@3/2 9clean@4/1", StateVersion(2, 9)),
    ],
)
def test_what_memory_has_to_say_against_a_checkpoint(where: str, held: StateVersion) -> None:
    assert choose(ranks(where)).in_memory == held


@pytest.mark.parametrize(
    ("where", "before", "asks"),
    [
        ("4clean@5 new", 5, False),
        ("4finished@5 4dirty@5", 5, False),
        ("4clean@5 4clean@3", 5, False),
        ("4dirty@5 4clean@3", 5, True),  # step 5 may have been saved in round 5
        ("4clean@3", 5, True),
        ("4clean@5", -1, True),
        ("new", 5, True),
    ],
)
def test_who_was_in_the_last_round_need_not_ask(where: str, before: int, asks: bool) -> None:
    there = [replace(s, latest=s.round == before) for s in ranks(where)]
    assert may_be_behind(there) == asks


@given(statuses)
def test_a_clean_commit_of_the_newest_term_is_never_lost(where: list[RankStatus]) -> None:
    choice = choose(where)
    last = max((s.round for s in where if s.condition is CLEAN), default=0)
    newest = max((s.term for s in where), default=0)
    for one in where:
        if one.condition is CLEAN and one.round == last and one.term == newest:
            assert choice.step >= one.step


@given(statuses)
def test_never_goes_beyond_what_somebody_holds(where: list[RankStatus]) -> None:
    choice = choose(where)
    if choice.kind.value == "memory":
        committed = max(s.step for s in where if s.condition is not NEW)
        assert choice.step <= committed + choice.adopt
        condition = FINISHED if choice.adopt else CLEAN
        for rank in choice.sources:
            status = where[rank]
            assert (status.step, status.condition) == (choice.step - choice.adopt, condition)
        assert choice.sources
    else:
        assert choice.step == 0


@given(statuses)
def test_every_rank_is_a_source_or_a_receiver(where: list[RankStatus]) -> None:
    choice = choose(where)
    assert sorted(choice.sources + choice.receivers) == list(range(len(where)))


@given(statuses, st.randoms(use_true_random=False))
def test_the_order_of_ranks_changes_nothing_but_the_names(
    where: list[RankStatus], random: object
) -> None:
    shuffled = list(where)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = choose(where), choose(shuffled)
    assert (one.kind, one.step, one.adopt, one.reason) == (
        other.kind,
        other.step,
        other.adopt,
        other.reason,
    )
    if one.kind.value == "memory":
        assert len(one.sources) == len(other.sources)


@given(statuses)
def test_what_a_new_rank_says_of_its_step_means_nothing(where: list[RankStatus]) -> None:
    plain = [RankStatus(0, NEW) if s.condition is NEW else s for s in where]
    assert choose(plain) == choose(where)
