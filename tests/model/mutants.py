"""Deliberately broken variants of the core, each of which the explorer must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.backoff import Backoff
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous import round_completer
from elastic_runtime.rendezvous.core import (
    incarnation,
    leader,
    reducer,
    round_parts,
)
from elastic_runtime.rendezvous.core.formation import round_formation
from elastic_runtime.rendezvous.core.membership_events import SILENT
from elastic_runtime.rendezvous.core.node_decision import Decision
from elastic_runtime.rendezvous.core.own import own_node, reachability_survey, store_outage
from elastic_runtime.rendezvous.store_contract import Transaction
from tests.model.themes import (
    CHURN,
    EMPTIED,
    ENDING,
    FORGETTING,
    GONE,
    ISLANDS,
    MIXED,
    OUTAGE,
    PARTED,
    PARTS,
    STALLED,
    Theme,
)

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.node_state import NodeState

Patch = Callable[[pytest.MonkeyPatch], None]


def no_islands_rule(patch: pytest.MonkeyPatch) -> None:
    """A new round is sealed although nobody of the last one is at hand."""
    patch.setattr(round_formation, "_is_safe", lambda last: True)


def silence_is_death(patch: pytest.MonkeyPatch) -> None:
    """A probe that is not answered counts as a refused one."""
    patch.setattr(reducer, "_PROOFS", (*reducer._PROOFS, SILENT))
    patch.setattr(
        "elastic_runtime.rendezvous.core.formation.member_status._PROOF_MESSAGES",
        {"silent": "", "refused": "", "other": ""},
    )


def seal_without_fence(patch: pytest.MonkeyPatch) -> None:
    """A seal compares neither the round that it replaces nor the leader's own key."""

    def unfenced(expects: Any, puts: Any, deletes: Any = ()) -> Transaction:
        return Transaction((), puts, deletes)

    patch.setattr(round_formation, "Transaction", unfenced)


def lost_workers_still_count(patch: pytest.MonkeyPatch) -> None:
    """In place, a node that says that its workers are gone is taken into the next round."""
    original = reducer._left_round

    def forgetful(state: NodeState, event: Any, now: float) -> NodeState:
        if event.workers == 0:
            event = replace(event, workers=1)
        return original(state, event, now)

    patch.setattr(reducer, "_left_round", forgetful)


def amnesia_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """A snapshot of a store that forgot is taken for any other."""
    original = reducer.reduce_snapshot
    patch.setattr(
        reducer,
        "reduce_snapshot",
        lambda state, event, now: original(state, replace(event, forgot=False), now),
    )


def round_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """Nobody gives the round back to a store that forgot; a new life begins instead."""
    patch.setattr(own_node, "restore_round", lambda state, ours, now: Decision(state))
    original = incarnation.create_job

    def anew(state: NodeState, now: float) -> Decision:
        return original(replace(state, history=replace(state.history, round=None)), now)

    patch.setattr(leader, "create_job", anew)


def never_fenced(patch: pytest.MonkeyPatch) -> None:
    """A group without contact to the store goes on for ever."""
    patch.setattr(store_outage, "_fence", lambda state, now: Decision(state))


def never_excluded(patch: pytest.MonkeyPatch) -> None:
    """A node does not mind that the job went on without it."""
    patch.setattr(own_node, "_why_excluded", lambda state, now: "")


def endless_wait(patch: pytest.MonkeyPatch) -> None:
    """A node waits for a store that never comes back for as long as it takes."""
    patch.setattr(store_outage, "_give_up", lambda state, problem, now: Decision(state))


def unaware_newcomer(patch: pytest.MonkeyPatch) -> None:
    """A node takes an empty store for a new job, though it was told that the job has run."""
    original = incarnation.create_job

    def hasty(state: NodeState, now: float) -> Decision:
        return original(replace(state, policy=replace(state.policy, resuming=False)), now)

    patch.setattr(leader, "create_job", hasty)


def hasty_successor(patch: pytest.MonkeyPatch) -> None:
    """A new life of the job does not wait for silent members of the old one."""
    patch.setattr(incarnation, "_is_over", lambda state, member: True)


def numbers_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """A new life of the job counts its rounds from one."""
    original = incarnation._new_job
    patch.setattr(incarnation, "_new_job", lambda state, first: original(state, 0))


def joiners_first(patch: pytest.MonkeyPatch) -> None:
    """Newcomers are ranked before survivors."""
    original = round_formation._next_round

    def reversed_(state: Any, job: Any, last: Any, chosen: Any) -> Any:
        return original(state, job, last, chosen[::-1])

    patch.setattr(round_formation, "_next_round", reversed_)


def impatient(patch: pytest.MonkeyPatch) -> None:
    """A refused write is tried again at once, however often."""
    patch.setattr(reducer, "_PAUSES", dict.fromkeys((True, False), Backoff(first=0.0, longest=0.0)))
    patch.setattr(reducer, "_UNANSWERED_PAUSE", 0.0)


def first_one_ends_all(patch: pytest.MonkeyPatch) -> None:
    """The job is over as soon as one member is through."""
    patch.setattr(leader, "all", any, raising=False)


def deaf_to_reports(patch: pytest.MonkeyPatch) -> None:
    """Nodes that say that they do not reach each other are put into one round."""
    patch.setattr(round_formation, "choose_connected", lambda nodes, *rest: list(nodes))


def never_looks_again(patch: pytest.MonkeyPatch) -> None:
    """A node that has missed others never finds out that they are in reach again."""
    patch.setattr(reachability_survey, "_look_again", lambda state, now: Decision(state))


def round_before_its_members(patch: pytest.MonkeyPatch) -> None:
    """The record of a round is written, whether its parts are or not."""
    original = round_formation.write

    def without(
        state: NodeState, tag: str, it: Transaction, now: float, *rest: Any, **_: Any
    ) -> Any:
        return original(state, tag, it, now, *rest)

    patch.setattr(round_formation, "write", without)


def more_is_another(patch: pytest.MonkeyPatch) -> None:
    """A round of which more members are known by now is taken for another one."""
    patch.setattr(RoundRecord, "identity", property(lambda self: (self.ranks, self.members)))


def never_cleans_up(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at what lies in the store of rounds."""
    patch.setattr(leader, "clean_up_parts", lambda state, last, now: Decision(state))


def asks_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A leader waits for who knows all members of a round, though nobody may."""

    def ask(state: NodeState, job: Any, last: RoundRecord, now: float) -> Any:
        return incarnation.write_round_again(state, last, now), None

    patch.setattr(leader, "call_roll", ask)


def parts_are_believed(patch: pytest.MonkeyPatch) -> None:
    """What a part says is taken for true, whatever its hash says."""
    for module in (round_parts, round_completer):
        patch.setattr(module, "intact", lambda entry: True)


# Each with the kind of schedule in which it shows soonest.
MUTANTS: tuple[tuple[Patch, Theme], ...] = (
    (no_islands_rule, ISLANDS),
    (silence_is_death, CHURN),
    (seal_without_fence, STALLED),
    (amnesia_unnoticed, OUTAGE),
    (round_not_given_back, FORGETTING),
    (never_fenced, ISLANDS),
    (endless_wait, GONE),
    (unaware_newcomer, EMPTIED),
    (never_excluded, MIXED),
    (hasty_successor, ISLANDS),
    (numbers_begin_anew, MIXED),
    (first_one_ends_all, ENDING),
    (joiners_first, MIXED),
    (impatient, CHURN),
    (lost_workers_still_count, CHURN),
    (deaf_to_reports, PARTED),
    (never_looks_again, PARTED),
    (round_before_its_members, CHURN),
    (more_is_another, CHURN),
    (never_cleans_up, PARTS),
    (asks_for_ever, PARTS),
    (parts_are_believed, PARTS),
)
