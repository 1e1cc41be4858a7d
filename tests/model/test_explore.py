"""The rendezvous holds in ten thousand schedules, and the explorer would have noticed if not.

The quick lane plays the first thousand of them.
"""

from __future__ import annotations

import pytest

from tests.model.explore import Result, explore, explore_many
from tests.model.mutants import MUTANTS, Patch
from tests.model.parts import quick_first
from tests.model.themes import ENDING, MIXED, Theme

SCHEDULES = 10_000
# So many tests: the quick lane runs the first, and the others are handed out one by one.
PARTS = 10
# A broken variant must be caught within so many schedules of its theme.
ENOUGH = 2500


def _told(failed: list[Result]) -> str:
    """A failure as a person needs it: the seed, how to replay it, and the end of the trace."""
    lines = [f"seed {it.seed} [{', '.join(it.faults)}]: {it.violation}" for it in failed]
    seed = failed[0].seed
    lines.append(f"replay: python -m tests.model.explore --seed {seed}")
    return "\n".join([*lines, *explore(seed, tracing=True).trace[-150:]])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", quick_first(PARTS))
def test_no_schedule_breaks_the_rendezvous(part: int) -> None:
    schedules = SCHEDULES // PARTS
    failed = explore_many(range(part * schedules, (part + 1) * schedules))
    assert not failed, _told(failed)


@pytest.mark.parametrize(("mutant", "theme"), MUTANTS, ids=lambda it: getattr(it, "__name__", ""))
def test_a_broken_core_is_caught(
    mutant: Patch, theme: Theme, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert explore_many(range(ENOUGH), theme=theme), f"{mutant.__doc__} Nobody noticed."


# What was found once: two lives of a job at once, as one that was long over came back to a store
# that had been emptied twice: from a node that had not seen the later one, and from one that had.
@pytest.mark.parametrize("seed", [264, 126607])
def test_a_schedule_that_broke_the_rendezvous_once_holds(seed: int) -> None:
    result = explore(seed)
    assert not result.violation, _told([result])


def test_schedules_reach_what_they_are_about() -> None:
    results = [explore(seed, theme) for theme in (MIXED, ENDING) for seed in range(150)]
    assert not [result for result in results if result.violation]
    assert max(result.seals for result in results) >= 5
    seen = {fault for result in results for fault in result.faults}
    assert seen >= set(MIXED.faults) - {"garble"}


def test_a_seed_replays_to_the_letter() -> None:
    for seed in range(5):
        first, second = (explore(seed, tracing=True) for _ in range(2))
        assert first == second
        assert first.trace
