"""Ranks in a round, of which all members are known or only some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.round_records import Budget, Member, RoundRecord

WORKERS = {"a": 2, "b": 3, "c": 1}
MEMBERS = tuple(Member(name, name, "127.0.0.1", count) for name, count in WORKERS.items())
ROUND = RoundRecord(3, "life", MEMBERS, 1, "why")
# The same, as a node knows it that has read of the first and the last member only.
SOME = replace(
    ROUND,
    members=(MEMBERS[0], MEMBERS[2]),
    group="g",
    parts=2,
    nodes=3,
    workers=6,
    ranks=(0, 2),
    firsts=(0, 5),
)


@pytest.mark.parametrize("known", [ROUND, SOME])
def test_a_member_has_the_same_ranks_whoever_asks(known: RoundRecord) -> None:
    known.check()
    assert (known.size, known.world_size) == (3, 6)
    assert (known.rank_of("a"), known.rank_of("c"), known.rank_of("stranger")) == (0, 2, -1)
    assert known.member(2) == MEMBERS[2]
    assert [known.first_worker(rank) for rank in (0, 2)] == [0, 5]


def test_who_is_not_known_here_is_an_error() -> None:
    assert ROUND.whole and not SOME.whole
    assert SOME.rank_of("b") == -1
    with pytest.raises(LookupError, match="round 3: group rank 1 is not known here"):
        SOME.member(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 0},
        {"members": ()},
        {"members": (MEMBERS[0], MEMBERS[0])},
        {"members": (replace(MEMBERS[0], workers=0),)},
        {"group": "g"},
        {"ranks": (0, 1)},
        {"ranks": (0, 1, 3), "firsts": (0, 2, 5), "nodes": 3},
    ],
)
def test_a_round_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        replace(ROUND, **changes).check()  # type: ignore[arg-type]


def test_only_a_round_in_parts_is_of_the_second_version() -> None:
    assert (ROUND.version, SOME.version) == (1, 2)


def test_restarts_are_counted_by_what_caused_them() -> None:
    budget = Budget(failures=1, killed=2, lost=3, planned=4, fruitless=9)
    assert budget.restarts == {"failed": 1, "killed": 2, "lost": 3, "planned": 4}
