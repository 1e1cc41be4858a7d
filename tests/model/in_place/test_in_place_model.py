"""No schedule loses a step that somebody holds, and the model would have noticed if one did.

The quick lane plays a tenth of them; ``ELASTIC_IN_PLACE_SCHEDULES=60000`` plays so many.
"""

from __future__ import annotations

import os

import pytest

from tests.model.in_place.job import play
from tests.model.in_place.mutants import MUTANTS, Patch
from tests.model.parts import quick_first

SCHEDULES = int(os.environ.get("ELASTIC_IN_PLACE_SCHEDULES", "6000"))
PARTS = 10
# A broken variant must be caught within so many.
ENOUGH = 3000


def _story(seed: int) -> str:
    violation, job = play(seed, tracing=True)
    return "\n".join([*job.trace[-40:], f"seed {seed}: {violation}"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", quick_first(PARTS))
def test_no_schedule_loses_what_somebody_holds(part: int) -> None:
    schedules = SCHEDULES // PARTS
    seeds = range(part * schedules, (part + 1) * schedules)
    failed = [seed for seed in seeds if play(seed)[0]]
    assert not failed, f"{len(failed)} of {schedules} schedules\n{_story(failed[0])}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda it: it.__name__)
def test_a_broken_variant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(play(seed)[0] for seed in range(ENOUGH)), f"{mutant.__doc__} Nobody noticed."


def test_schedules_reach_what_they_are_about() -> None:
    seen = set().union(*(play(seed)[1].seen for seed in range(100)))
    assert seen == {
        "loaded",
        "loaded over memory",
        "passed over",
        "left",
        "late commit",
        "late term",
        "unheard commit",
        "pruned",
    }
