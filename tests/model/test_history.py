"""The checker of histories finds what breaks the guarantee, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.model.history import (
    Begun,
    Committed,
    Entered,
    Kept,
    Left,
    Process,
    Strike,
    parse,
    violations,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.history import Record


def batch(step: int) -> list[int]:
    return [10 * step, 10 * step + 1, 10 * step + 2]


def share(step: int, rank: int, world: int) -> tuple[int, ...]:
    return tuple(batch(step)[rank:]) if rank == world - 1 else tuple(batch(step)[rank : rank + 1])


class Story:
    """A history in the making; the clock goes on by one with each record."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.strikes: list[Strike] = []
        self.now = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def enter(self, number: int, ranks: str, step: int) -> None:
        """Processes, one letter each, enter a round in rank order."""
        for rank, one in enumerate(ranks):
            state = step * 100
            self.add(Entered(self.tick(), one, number, rank, len(ranks), step, state))

    def step(self, number: int, ranks: str, step: int, commit: str | None = None) -> None:
        """All make a step; those in ``commit`` commit it."""
        for rank, one in enumerate(ranks):
            part = share(step, rank, len(ranks))
            self.add(Begun(self.tick(), one, number, step, part))
        for one in ranks if commit is None else commit:
            self.add(Committed(self.tick(), one, number, step, step * 100))

    def leave(self, number: int, ranks: str, step: int) -> None:
        for one in ranks:
            self.add(Left(self.tick(), one, number, step))

    def strike(self, one: str, kind: str = "killed") -> None:
        self.strikes.append(Strike(self.tick(), one, kind))  # type: ignore[arg-type]

    def add(self, record: Record) -> None:
        self.records.append(record)

    def found(self) -> list[str]:
        return violations(self.records, self.strikes, batch)


def recovery(commit: str = "abc", start: int = 2, victim: str = "c") -> Story:
    """Three train to step 2, which only some commit; one is struck, and two go on from a step."""
    story = Story()
    story.enter(1, "abc", 0)
    story.step(1, "abc", 1)
    story.step(1, "abc", 2, commit=commit)
    story.strike(victim)
    rest = "abc".replace(victim, "")
    story.leave(1, rest, 2)
    story.enter(2, rest, start)
    for step in range(start + 1, 4):
        story.step(2, rest, step)
    story.leave(2, rest, 3)
    return story


@pytest.mark.parametrize(
    "story",
    [
        recovery(),
        recovery(commit="a"),  # b receives the step from a
        recovery(commit="c", start=1),  # held only by who died: it is done again
        recovery(commit="c", start=2),  # finished by those who live: adopted
        recovery(commit="", start=2),
    ],
    ids=["whole", "given", "again", "adopted", "adopted, never committed"],
)
def test_a_right_history_is_found_right(story: Story) -> None:
    assert story.found() == []


def test_a_step_that_a_living_rank_holds_must_not_be_lost() -> None:
    story = recovery(commit="a", start=1)
    assert story.found() == ["round 2 goes on from step 1, but a held step 2"]


def test_nor_by_a_rank_that_was_struck_before_it_entered() -> None:
    story = recovery(commit="a", start=1)
    story.strikes.insert(0, Strike(0, "a", "killed"))
    assert any("but a held step 2" in sentence for sentence in story.found())


@pytest.mark.parametrize("until", [0, 1, 1 << 62], ids=["once", "woken", "silent still"])
def test_unless_it_is_silent_still(until: int) -> None:
    story = recovery(commit="a", start=1)
    entered = min(r.at for r in story.records)
    records = [replace(r, at=r.at - entered + 5) for r in story.records]
    strikes = [replace(s, at=s.at - entered + 5) for s in story.strikes]
    strikes.insert(0, Strike(0, "a", "stopped", until))
    found = violations(records, strikes, batch)
    assert any("but a held step 2" in sentence for sentence in found) is (until < 5)


@pytest.mark.parametrize("dead", [0, 1 << 62], ids=["at once", "a round later"])
def test_who_is_killed_may_enter_one_more_round_before_it_is_dead(dead: int) -> None:
    story = recovery(commit="a", start=1)
    story.strikes.insert(0, Strike(0, "a", "killed", dead))
    assert any("but a held step 2" in sentence for sentence in story.found()) is (not dead)


def test_nor_by_one_that_has_left_the_round_before_the_last() -> None:
    story = recovery(commit="abc", start=2)
    story.enter(3, "ab", 2)
    story.leave(3, "ab", 2)
    assert len(story.found()) == 2
    assert all("held step 3" in sentence for sentence in story.found())


def test_a_rank_that_is_asked_to_leave_takes_nothing_with_it() -> None:
    story = recovery(commit="c", start=1)
    story.strikes = [replace(story.strikes[0], kind="asked")]
    story.leave(1, "c", 2)
    assert story.found() == ["round 2 goes on from step 1, but c held step 2"]


def test_unless_another_fault_breaks_the_round_meanwhile() -> None:
    story = recovery(commit="c", start=1)
    story.strikes = [replace(story.strikes[0], kind="asked")]
    story.strikes.append(replace(story.strikes[0], process="d", kind="killed"))
    story.leave(1, "c", 2)
    assert story.found() == []


def test_a_step_that_nobody_has_made_must_not_be_gone_on_from() -> None:
    story = recovery(start=3)
    assert story.found() == ["round 2 goes on from step 3, which nobody has made"]


def _wrong(story: Story, change: Callable[[Record], Record | None]) -> list[str]:
    changed = (change(record) for record in story.records)
    return violations([r for r in changed if r is not None], story.strikes, batch)


_RANK = (Entered, "b", 2, 2)
_SHARE = (Begun, "a", 1, 2)


@pytest.mark.parametrize(
    ("which", "fields", "said", "said_in_all"),
    [
        ((Committed, "b", 1, 1), None, "b committed step 2 of round 1 right after step 0", 4),
        (_RANK, {"step": 1, "digest": 100}, "the ranks of round 2 go on from different steps", 4),
        (_RANK, {"rank": 0}, "round 2 has ranks [0, 0] in worlds of [2]", 2),
        (
            (Committed, "b", 2, 3),
            {"digest": 7},
            "the ranks of round 2 hold different states at step 3",
            1,
        ),
        (_SHARE, {"samples": (20, 21)}, "step 2 of round 1 had samples", 1),  # one of them twice
        (_SHARE, {"samples": ()}, "step 2 of round 1 had samples", 1),
        (_SHARE, {"samples": (20, 20)}, "step 2 of round 1 had samples", 1),
        (_SHARE, {"samples": (99,)}, "step 2 of round 1 had samples", 1),
    ],
)
def test_one_wrong_record_is_found(
    which: tuple[type, str, int, int], fields: dict[str, Any] | None, said: str, said_in_all: int
) -> None:
    """None: the record is missing."""

    def change(one: Record) -> Record | None:
        if (type(one), one.process, one.round, one.step) != which:
            return one
        return None if fields is None else replace(one, **fields)

    found = _wrong(recovery(), change)
    assert found[0].startswith(said)
    assert len(found) == said_in_all


def test_the_step_before_must_be_held_everywhere() -> None:
    story = recovery()
    late = next(r.at for r in story.records if isinstance(r, Committed) and r.step == 2)

    def change(one: Record) -> Record | None:
        if one.at > late:
            return replace(one, at=one.at + 1)
        held_late = isinstance(one, Committed) and one.process == "b" and one.step == 1
        return replace(one, at=late + 1) if held_late else one

    found = _wrong(story, change)
    assert found == ["a committed step 2 of round 1 before all ranks held step 1"]


def test_a_round_begins_with_the_state_that_was_held() -> None:
    def change(one: Record) -> Record | None:
        if one.round == 2 and isinstance(one, Entered | Committed):
            return replace(one, digest=7 + one.step)
        return one

    found = _wrong(recovery(), change)
    assert found == [
        *(f"round 2 does not begin with the state that {one} held at step 2" for one in "ab"),
        "round 2 begins at step 2 with a state that nobody had committed there",
    ]


def test_also_if_nobody_lives_who_held_it() -> None:
    story = recovery()
    story.strikes += [Strike(story.strikes[0].at, one, "killed") for one in "ab"]
    assert story.found() == []
    story.records = [
        replace(r, digest=7 + r.step) if r.round == 2 and isinstance(r, Entered | Committed) else r
        for r in story.records
    ]
    assert story.found() == [
        "round 2 begins at step 2 with a state that nobody had committed there"
    ]


def _begins(number: int, step: int, digest: int) -> Entered:
    """A process is alone in a round, which goes on from there."""
    return Entered(10 * number, f"p{number}", number, 0, 1, step, digest)


def test_a_step_that_was_given_up_with_its_holders_may_be_made_otherwise() -> None:
    committed = Committed(15, "p1", 1, 3, 30)
    told = "round 3 begins at step 3 with a state that nobody had committed there"
    again = [_begins(1, 1, 10), committed, _begins(2, 1, 10), _begins(3, 3, 31)]
    assert told not in violations(again, [], batch, [])
    # Not if it was not given up, nor if somebody has committed it since.
    straight = [_begins(1, 1, 10), committed, _begins(2, 3, 30), _begins(3, 3, 31)]
    assert told in violations(straight, [], batch, [])
    since = [*again[:3], Committed(25, "p2", 2, 3, 32), again[3]]
    assert told in violations(since, [], batch, [])


def test_a_step_that_a_checkpoint_holds_must_not_be_lost() -> None:
    story = recovery(commit="c", start=1)
    opened = min(r.at for r in story.records if r.round == 2)
    older, newer = Kept(1, 1, opened - 3), Kept(1, 2, opened - 2)
    assert violations(story.records, story.strikes, batch, [older]) == []
    assert violations(story.records, story.strikes, batch, [replace(newer, made=opened + 1)]) == []
    assert violations(story.records, story.strikes, batch, [older, newer]) == [
        "round 2 goes on from step 1, but the checkpoint of step 2 and term 1 was there"
    ]
    # One of an older term that is further was written by a rank that was left behind.
    assert violations(story.records, story.strikes, batch, [newer, replace(older, term=2)]) == []


def test_no_checkpoint_is_removed_that_is_further_than_those_that_stay() -> None:
    first, second = Kept(1, 10, 1, gone=5), Kept(1, 20, 2)
    assert violations([], [], batch, [first, second]) == []
    assert violations([], [], batch, [first, replace(second, made=6)]) == [
        "the checkpoint of step 10 and term 1 was removed, and nothing as far was left"
    ]
    back = Kept(2, 5, 3)
    assert violations([], [], batch, [first, replace(second, gone=5), back]) == [
        f"the checkpoint of step {step} and term 1 was removed, and nothing as far was left, only "
        "step 5 of term 2"
        for step in (10, 20)
    ]


def test_a_counter_of_the_script_moves_with_the_steps() -> None:
    story = recovery()
    story.records = [
        replace(r, tale=r.step) if isinstance(r, Entered | Committed) else r for r in story.records
    ]
    assert violations(story.records, story.strikes, batch, tale=lambda step: step) == []
    found = violations(story.records, story.strikes, batch, tale=lambda step: min(step, 2))
    assert found == [f"{one} had another counter at step 3 of round 2" for one in "ab"]


@pytest.mark.parametrize("kind", [Begun, Committed])
def test_no_two_rounds_train_at_once(kind: type[Begun | Committed]) -> None:
    story = recovery()
    late = next(r for r in story.records if isinstance(r, kind) and r.step == 2)
    moment = max(r.at for r in story.records) + 1
    records = [replace(r, at=moment) if r is late else r for r in story.records]
    found = violations(records, story.strikes, batch)
    assert f"{late.process} was at step 2 of round 1 while round 2 trained" in found


def test_who_was_stopped_may_finish_the_step_it_was_in() -> None:
    story = recovery(commit="ab")
    story.strikes = [replace(story.strikes[0], kind="stopped")]
    story.add(Committed(story.tick(), "c", 1, 2, 200))
    assert story.found() == []
    story.add(Committed(story.tick(), "c", 1, 3, 300))
    assert "c was at step 3 of round 1 while round 2 trained" in story.found()


def test_rounds_only_grow() -> None:
    story = recovery()
    story.records = [replace(r, round=3 - r.round) for r in story.records]
    assert "round 2 began before round 1" in story.found()


def test_no_process_vanishes_by_itself() -> None:
    story = recovery()
    story.strikes.clear()
    assert story.found() == ["c vanished in round 1, and nobody had struck it"]


def test_a_step_that_is_done_again_has_the_same_samples() -> None:
    def change(one: Record) -> Record | None:
        again = isinstance(one, Begun) and one.round == 2 and one.step == 2
        return replace(one, samples=share(3, one.process == "b", 2)) if again else one

    (sentence,) = _wrong(recovery(commit="c", start=1), change)
    assert sentence == "step 2 of round 2 had samples [30, 31, 32], not [20, 21, 22]"


def test_a_step_that_was_broken_off_need_not_have_been_begun_everywhere() -> None:
    story = recovery()
    story.records = [
        r
        for r in story.records
        if not (isinstance(r, Begun | Committed) and r.step == 3 and r.process == "b")
        and not (isinstance(r, Committed) and r.step == 3)
    ]
    assert story.found() == []


def test_lines_are_read() -> None:
    lines = [
        {"what": "born", "at": 1, "pid": 7, "mark": "m/n0"},
        {"what": "entered", "at": 2, "round": 1, "rank": 0, "world": 1, "step": 0, "digest": 5},
        {"what": "begun", "at": 3, "round": 1, "step": 1, "samples": [4, 2]},
        {"what": "committed", "at": 4, "round": 1, "step": 1, "digest": 6},
        {"what": "left", "at": 5, "round": 1, "step": 1},
        {"what": "ended", "at": 6, "step": 1},
    ]
    assert [parse("p", json.dumps(line).encode()) for line in lines] == [
        Process("p", 7, "m/n0", 1),
        Entered(2, "p", 1, 0, 1, 0, 5),
        Begun(3, "p", 1, 1, (4, 2)),
        Committed(4, "p", 1, 1, 6),
        Left(5, "p", 1, 1),
        None,
    ]
