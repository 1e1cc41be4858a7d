"""Broken variants of what decides in place, each of which the model must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.load import newest_state
from elastic_runtime.checkpoint.save import save_run
from elastic_runtime.checkpoint.save.save_run import Tenure
from elastic_runtime.checkpoint.storage.storage_contract import Storage
from elastic_runtime.worker.recovery import recovery_source
from elastic_runtime.worker.recovery.recovery_source import Condition, Held
from tests.model.in_place import job
from tests.model.in_place.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.worker.recovery.recovery_source import Choice, Standing

Patch = Callable[[pytest.MonkeyPatch], None]


def memory_never_asks(patch: pytest.MonkeyPatch) -> None:
    """Whoever has a memory goes on from it, as before there were terms in memory."""
    patch.setattr(recovery_source, "may_be_behind", lambda standings: False)


def anybody_has_a_say(patch: pytest.MonkeyPatch) -> None:
    """One rank that can serve is enough not to ask, whichever round it comes from."""
    patch.setattr(
        recovery_source, "may_be_behind", lambda standings: all(s.reach < 0 for s in standings)
    )


def a_half_done_step_need_not_ask(patch: pytest.MonkeyPatch) -> None:
    """A rank of the last round is enough not to ask, even if it cannot serve."""
    patch.setattr(
        recovery_source,
        "may_be_behind",
        lambda standings: not any(s.latest for s in standings),
    )


def terms_are_of_no_interest(patch: pytest.MonkeyPatch) -> None:
    """Ranks go by steps alone."""
    patch.setattr(recovery_source, "_terms", _terms_of(lambda s, newest: 0))


def a_term_is_what_one_has_heard(patch: pytest.MonkeyPatch) -> None:
    """What others of the same history know of a term does not count."""
    patch.setattr(recovery_source, "_terms", _terms_of(lambda s, newest: s.term))


def _terms_of(term: Callable[[Standing, int], int]) -> Callable[[Sequence[Standing]], list[int]]:
    def terms(standings: Sequence[Standing]) -> list[int]:
        newest = max((s.term for s in standings), default=0)
        new = Condition.NEW
        return [-1 if s.condition is new else term(s, newest) for s in standings]

    return terms


def nobody_hears_of_a_save(patch: pytest.MonkeyPatch) -> None:
    """A term becomes known only to those who load what was saved in it."""
    patch.setattr(Tenure, "hear", lambda self, which: None)


def the_term_is_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    """Who gets a state from others does not get to know of what term it is."""
    original = Tenure.settle

    def settle(self: Tenure, base: CheckpointId, known: int, *, anew: bool) -> None:
        original(self, CheckpointId(0, 0), 0, anew=anew)

    patch.setattr(Tenure, "settle", settle)


def an_old_term_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Who was left behind, and has asked since, goes on saving in the term that it had."""
    patch.setattr(Tenure, "let_go", lambda self: None)


def a_term_is_for_whoever_comes(patch: pytest.MonkeyPatch) -> None:
    """Who was stopped, and goes on in a round that is over, takes a term from the present one."""
    patch.setattr(Storage, "_refuse_earlier", lambda self, holder, names, newest: None)


def what_is_newer_is_not_set_aside(patch: pytest.MonkeyPatch) -> None:
    """Retention counts, and deletes, what the job does not go on from."""
    patch.setattr(save_run, "left_behind", lambda names, base, term: [])


def all_that_is_older_is_ones_own(patch: pytest.MonkeyPatch) -> None:
    """Set aside is only what has more steps than this save, not than what it goes on from."""
    patch.setattr(Tenure, "inherit", _inherit_too_much)


def _inherit_too_much(self: Tenure, which: CheckpointId) -> None:
    self._base = CheckpointId(which.term, 1 << 60)
    self._known = max(self._known, which.term)
    self._inherits = True
    self.let_go()


def what_is_older_is_loaded_over_memory(patch: pytest.MonkeyPatch) -> None:
    """Whatever is saved is loaded, however far the memory is."""
    original = newest_state.ways
    patch.setattr(newest_state, "ways", lambda offers, stored, over=None: original(offers, stored))


def what_was_passed_over_is_newer(patch: pytest.MonkeyPatch) -> None:
    """What could not be loaded for a while counts as before when it can be."""
    patch.setattr(Tenure, "pass_over", lambda self, which: None)


def the_base_of_a_memory_is_its_step(patch: pytest.MonkeyPatch) -> None:
    """What has fewer steps than a memory is taken for a part of it."""
    original = recovery_source.choose

    def choose(standings: Sequence[Standing]) -> Choice:
        choice = original(standings)
        return replace(choice, base=Held(choice.term, choice.step))

    patch.setattr(recovery_source, "choose", choose)


def a_load_keeps_the_term(patch: pytest.MonkeyPatch) -> None:
    """Who loads what is saved goes on saving in the term that it had."""
    original = Tenure.inherit

    def inherit(self: Tenure, which: CheckpointId) -> None:
        term = self._term
        original(self, which)
        self._term, self._used_up = term, True

    patch.setattr(Tenure, "inherit", inherit)


def nothing_found_is_the_present_step(patch: pytest.MonkeyPatch) -> None:
    """A load that finds nothing says that the half-done memory is what it has loaded."""
    original = Job.load

    def load(self: Job, over: Any, chosen: Any) -> Any:
        found = original(self, over, chosen)
        if found is None and chosen[0].step:
            for one in chosen:
                one.hold(one.history)
            return CheckpointId(0, chosen[0].step)
        return found

    patch.setattr(job.Job, "load", load)


def a_finished_step_goes_first(patch: pytest.MonkeyPatch) -> None:
    """The furthest finished step is adopted, although a clean rank holds a later history."""
    original = recovery_source.choose

    def choose(standings: Sequence[Standing]) -> Choice:
        finished = [
            replace(s, condition=Condition.DIRTY) if s.condition is Condition.CLEAN else s
            for s in standings
        ]
        eager = original(finished)
        return eager if eager.kind == "memory" else original(standings)

    patch.setattr(recovery_source, "choose", choose)


def sources_of_any_round(patch: pytest.MonkeyPatch) -> None:
    """Whoever has as many steps is a source, also one that made the last step alone."""
    original = recovery_source.choose

    def choose(standings: Sequence[Standing]) -> Choice:
        choice = original(standings)
        if choice.kind != "memory" or choice.adopt:
            return choice
        sources = tuple(
            rank
            for rank, s in enumerate(standings)
            if s.reach == choice.step and s.condition is Condition.CLEAN
        )
        receivers = tuple(r for r in range(len(standings)) if r not in sources)
        return replace(choice, sources=sources, receivers=receivers)

    patch.setattr(recovery_source, "choose", choose)


MUTANTS: tuple[Patch, ...] = (
    memory_never_asks,
    anybody_has_a_say,
    a_half_done_step_need_not_ask,
    terms_are_of_no_interest,
    a_term_is_what_one_has_heard,
    nobody_hears_of_a_save,
    the_term_is_not_passed_on,
    an_old_term_is_kept,
    a_term_is_for_whoever_comes,
    what_is_newer_is_not_set_aside,
    all_that_is_older_is_ones_own,
    what_is_older_is_loaded_over_memory,
    what_was_passed_over_is_newer,
    the_base_of_a_memory_is_its_step,
    a_load_keeps_the_term,
    nothing_found_is_the_present_step,
    a_finished_step_goes_first,
    sources_of_any_round,
)
