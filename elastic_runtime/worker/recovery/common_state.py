"""Gives all ranks of a new round one common state, and reports it.

``state_transfer`` does the transfer. This module keeps what a process must remember from round to
round, and decides when it is better to end the job than to continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.events.state_events import StateFresh, StateGiven, StateLoaded, StateNotSaved
from elastic_runtime.limits import LOST_STEPS_ALLOWED
from elastic_runtime.worker.recovery.recovery_source import RecoveryKind, StateLost, choose
from elastic_runtime.worker.recovery.state_transfer import Restorer, bring_together
from elastic_runtime.worker.world import FollowsWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.checkpoint.checkpointer import Checkpointer
    from elastic_runtime.events.event import NotedEvent
    from elastic_runtime.training.state import State
    from elastic_runtime.worker.peers import GlooGroups
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice
    from elastic_runtime.worker.world import World


@dataclass(frozen=True, slots=True)
class EarlierRounds:
    """What is known of the job's earlier rounds.

    Attributes:
        incarnation: of the job; rounds of another one are not counted with this one's.
        committed: the highest step that was ever reported; -1: none.
    """

    incarnation: str = ""
    committed: int = -1


class StateRecovery:
    """Brings this rank and the others to one state, in one round after the other."""

    def __init__(
        self,
        state: State,
        saver: Checkpointer | None,
        note: Callable[[NotedEvent], None],
        *,
        start_over: bool,
        strict: bool = True,
    ) -> None:
        """Remembers what it is about.

        Args:
            state: of this rank.
            saver: knows what is saved.
            note: takes events; those of rank 0 count.
            start_over: the job may begin again at step 0 after it has lost everything.
            strict: what is loaded must have exactly the keys of this program.
        """
        self._state = state
        self._saver = saver
        self._note = note
        self._start_over = start_over
        self._strict = strict
        self._incarnation = ""
        self._brought_to = state.step  # by a load before training

    def recover(self, gloo: GlooGroups, world: World, past: EarlierRounds) -> None:
        """Brings all ranks to one state: the furthest in memory, or what was saved.

        Raises:
            UsageError: no rank has a complete state, and nothing is saved.
        """
        state, saver = self._state, self._saver
        self._enter(gloo, world)
        restorer = None
        if saver is not None:
            load = partial(saver.load, strict=self._strict)
            restorer = Restorer(saver.term, saver.base, load, saver.received)
        same = bool(past.incarnation) and past.incarnation == self._incarnation
        wire = gloo.group._get_backend(torch.device("cpu"))
        before = world.round - 1 if same else -1
        choice = bring_together(state, wire, world.rank, world.size, restorer, before=before)
        if choice.kind in (RecoveryKind.LOST, RecoveryKind.FRESH):
            self._check_beginning(choice, past)
            self._refuse_loaded()
        state.drop_preallocated()
        state._round = world.round  # all ranks are alike here
        self._incarnation = past.incarnation
        if saver is not None:
            saver.recovered(choice)
        self._tell(choice, world, past)

    def load_saved(self, gloo: GlooGroups, world: World) -> None:
        """Begins with what was saved, if anything was, and with nothing of another rank's memory.

        Raises:
            CheckpointError: it cannot be loaded, or does not fit.
        """
        self._enter(gloo, world)
        found = self._saver.load(None, strict=self._strict) if self._saver is not None else None
        if found is None:
            self._refuse_loaded()
        self._state.resumed_at(found.step if found is not None else 0)

    def _refuse_loaded(self) -> None:
        """Refuses to begin at step 0 with loaders, schedules and values of a later one.

        Raises:
            UsageError: ``elastic.load`` has brought the State to a step.
        """
        if self._brought_to:
            raise UsageError(
                f"elastic.load has brought this State to step {self._brought_to}, and training "
                "begins at step 0, as nothing is saved where it is to be saved: load what is to be "
                "kept into a State of its own, elastic.load(place, elastic.State(model=model), "
                "strict=False), and train another State with that model"
            )

    def alone(self, gloo: GlooGroups, world: World) -> bool:
        """Prepares this process to save its memory alone, between two rounds.

        Returns:
            Whether it should be saved: it is complete, and nothing newer is stored.
        """
        state, saver = self._state, self._saver
        assert saver is not None
        self._enter(gloo, world)
        restorer = Restorer(saver.term, saver.base, lambda over: None)
        mine = choose([state.rank_status()])
        stored = saver.newest()
        held = mine.in_memory and mine.in_memory._replace(term=saver.term)
        if held is None or (stored is not None and stored > held):
            self._note(StateNotSaved(state.step, _why_not(mine, stored)))
            return False
        choice = bring_together(state, None, 0, 1, restorer)
        state._round = world.round
        saver.recovered(choice)
        return True

    def _enter(self, gloo: GlooGroups, world: World) -> None:
        for part in (*self._state._named.values(), self._state._alone):
            if isinstance(part, FollowsWorld):
                part.enter(world)
                part.use_groups(gloo)
        if self._saver is not None:
            self._saver.attach(self._state, gloo)

    def _check_beginning(self, choice: RecoveryChoice, past: EarlierRounds) -> None:
        """Refuses to begin again at step 0 without the user's permission.

        Raises:
            UsageError: steps were committed, and are lost.
            StateLost: the same, and the job may start over with new processes.
        """
        lost = choice.kind is RecoveryKind.LOST
        committed = max(past.committed, choice.given_up)
        may = self._start_over or committed <= LOST_STEPS_ALLOWED
        if not lost and may:
            return
        what = "no rank holds a whole state any more" if lost else "no rank has a state in memory"
        raise (StateLost if may else UsageError)(
            f"{what} ({choice.reason}), and nothing is saved: {committed} steps are lost; save "
            "them with state.checkpoints(..., every=...), or take State(shadow=True) so that "
            "a half-done step can be undone. The job may begin again at step 0 if it is started "
            "again, and by itself with elastic.run(..., start_over=True)"
        )

    def _tell(self, choice: RecoveryChoice, world: World, past: EarlierRounds) -> None:
        step = self._state.step
        given_up = choice.given_up or None
        reached = past.committed if past.committed > step else None
        later = world.round > 1  # at a job's start there is nothing else than a save, or nothing
        if choice.kind is RecoveryKind.SAVED and later:
            self._note(StateLoaded(step, choice.reason, given_up, reached))
        elif choice.kind is RecoveryKind.FRESH and later:
            self._note(StateFresh(choice.reason, given_up, reached))
        elif choice.kind is RecoveryKind.MEMORY:
            if choice.receivers or choice.given_up:
                self._note(StateGiven(step, len(choice.receivers), given_up, reached))


def _why_not(mine: RecoveryChoice, stored: Any) -> str:
    if mine.in_memory is None:
        return mine.reason
    return f"step {stored.step} of term {stored.term} is stored, which is newer"
