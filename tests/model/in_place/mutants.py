"""Broken variants of what decides in place, each of which the model must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.load import newest_state
from elastic_runtime.checkpoint.save import save_term
from elastic_runtime.checkpoint.save.save_term import SaveTerm
from elastic_runtime.checkpoint.storage.storage_contract import Storage
from elastic_runtime.worker.recovery import recovery_source
from elastic_runtime.worker.recovery.recovery_source import (
    MemoryCondition,
    RecoveryKind,
    StateVersion,
)
from tests.model.in_place import job
from tests.model.in_place.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.worker.recovery.recovery_source import RankStatus, RecoveryChoice

Patch = Callable[[pytest.MonkeyPatch], None]


def memory_never_asks(patch: pytest.MonkeyPatch) -> None:
    """Whoever has a memory goes on from it, as before there were terms in memory."""
    patch.setattr(recovery_source, "may_be_behind", lambda statuses: False)


def anybody_has_a_say(patch: pytest.MonkeyPatch) -> None:
    """One rank that can serve is enough not to ask, whichever round it comes from."""
    patch.setattr(
        recovery_source, "may_be_behind", lambda statuses: all(s.reach < 0 for s in statuses)
    )


def a_half_done_step_need_not_ask(patch: pytest.MonkeyPatch) -> None:
    """A rank of the last round is enough not to ask, even if it cannot serve."""
    patch.setattr(
        recovery_source,
        "may_be_behind",
        lambda statuses: not any(s.latest for s in statuses),
    )


def terms_are_of_no_interest(patch: pytest.MonkeyPatch) -> None:
    """Ranks go by steps alone."""
    patch.setattr(recovery_source, "_terms", _terms_of(lambda s, newest: 0))


def a_term_is_what_one_has_heard(patch: pytest.MonkeyPatch) -> None:
    """What others of the same history know of a term does not count."""
    patch.setattr(recovery_source, "_terms", _terms_of(lambda s, newest: s.term))


def _terms_of(
    term: Callable[[RankStatus, int], int],
) -> Callable[[Sequence[RankStatus]], list[int]]:
    def terms(statuses: Sequence[RankStatus]) -> list[int]:
        newest = max((s.term for s in statuses), default=0)
        new = MemoryCondition.NEW
        return [-1 if s.condition is new else term(s, newest) for s in statuses]

    return terms


def nobody_hears_of_a_save(patch: pytest.MonkeyPatch) -> None:
    """A term becomes known only to those who load what was saved in it."""
    patch.setattr(SaveTerm, "about_to_save", lambda self, which: None)


def the_term_is_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    """Who gets a state from others does not get to know of what term it is."""
    original = SaveTerm.recover_from

    def settle(self: SaveTerm, base: CheckpointId, known: int, *, take_new_term: bool) -> None:
        original(self, CheckpointId(0, 0), 0, take_new_term=take_new_term)

    patch.setattr(SaveTerm, "recover_from", settle)


def an_old_term_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Who was left behind, and has asked since, goes on saving in the term that it had."""
    patch.setattr(SaveTerm, "release", lambda self: None)


def a_term_is_for_whoever_comes(patch: pytest.MonkeyPatch) -> None:
    """Who was stopped, and goes on in a round that is over, takes a term from the present one."""
    patch.setattr(Storage, "_refuse_earlier", lambda self, holder, names, newest: None)


def what_is_newer_is_not_set_aside(patch: pytest.MonkeyPatch) -> None:
    """Retention counts, and deletes, what the job does not go on from."""
    patch.setattr(save_term, "left_behind", lambda names, base, term: [])


def all_that_is_older_is_ones_own(patch: pytest.MonkeyPatch) -> None:
    """Set aside is only what has more steps than this save, not than what it goes on from."""
    patch.setattr(SaveTerm, "resume_from", _inherit_too_much)


def _inherit_too_much(self: SaveTerm, which: CheckpointId) -> None:
    self._base = CheckpointId(which.term, 1 << 60)
    self._known = max(self._known, which.term)
    self._owns_place = True
    self.release()


def what_is_older_is_loaded_over_memory(patch: pytest.MonkeyPatch) -> None:
    """Whatever is saved is loaded, however far the memory is."""
    original = newest_state.resume_candidates
    patch.setattr(
        newest_state,
        "resume_candidates",
        lambda offers, stored, over=None: original(offers, stored),
    )


def what_was_passed_over_is_newer(patch: pytest.MonkeyPatch) -> None:
    """What could not be loaded for a while counts as before when it can be."""
    patch.setattr(SaveTerm, "pass_over", lambda self, which: None)


def the_base_of_a_memory_is_its_step(patch: pytest.MonkeyPatch) -> None:
    """What has fewer steps than a memory is taken for a part of it."""
    original = recovery_source.choose

    def choose(statuses: Sequence[RankStatus]) -> RecoveryChoice:
        choice = original(statuses)
        return replace(choice, base=StateVersion(choice.term, choice.step))

    patch.setattr(recovery_source, "choose", choose)


def a_load_keeps_the_term(patch: pytest.MonkeyPatch) -> None:
    """Who loads what is saved goes on saving in the term that it had."""
    original = SaveTerm.resume_from

    def inherit(self: SaveTerm, which: CheckpointId) -> None:
        term = self._term
        original(self, which)
        self._term, self._used_up = term, True

    patch.setattr(SaveTerm, "resume_from", inherit)


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


def sources_of_any_round(patch: pytest.MonkeyPatch) -> None:
    """Whoever has as many steps is a source, also one that made the last step alone."""
    original = recovery_source.choose

    def choose(statuses: Sequence[RankStatus]) -> RecoveryChoice:
        choice = original(statuses)
        if choice.kind is not RecoveryKind.MEMORY:
            return choice
        sources = tuple(rank for rank, s in enumerate(statuses) if s.reach == choice.step)
        receivers = tuple(r for r in range(len(statuses)) if r not in sources)
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
    sources_of_any_round,
)
