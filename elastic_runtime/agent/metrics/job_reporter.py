"""What an agent tells people of its job: events, how long recoveries took, and hints.

It adds to an event what only the agent knows, and keeps the important ones in the store, where
``elasticctl`` finds them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.job_hints import Facts, hints
from elastic_runtime.agent.lifecycle.lifecycle_state import Phase
from elastic_runtime.agent.metrics.metrics_fold import LoopTurned, RecoveryBegan
from elastic_runtime.agent.metrics.recovery_timing import (
    Interruption,
    RecoveryTimer,
    step_before_round,
)
from elastic_runtime.events.checkpoint_events import CheckpointCommitted, CheckpointResumed
from elastic_runtime.events.event import NotedEvent, read
from elastic_runtime.events.job_events import Hint
from elastic_runtime.events.round_events import RoundRecovered, RoundSealed, StepFirst
from elastic_runtime.events.state_events import DataShuffles, StateLacks, TrainerUnadapted
from elastic_runtime.protocol.records import EventRecord, event_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.agent.lifecycle.lifecycle_state import AgentState
    from elastic_runtime.agent.metrics.metrics_fold import Watch, WorkerProgress
    from elastic_runtime.config import JobConfig
    from elastic_runtime.events import Emit, Event
    from elastic_runtime.protocol.messages import Note


class JobReporter:
    """Tells people of one agent's job, in its main thread.

    Args:
        config: the settings.
        emit: where events go.
        watch: where that goes which only measurements need; None: nothing is measured.
        keep: keeps an event in the store, under a key.
        node: the uuid of this node.
        state: what the agent knows.
        progress: the step that a worker has reported last, which of its steps that was, and when.
    """

    def __init__(
        self,
        config: JobConfig,
        emit: Emit,
        watch: Watch | None,
        keep: Callable[[str, EventRecord], None],
        node: Callable[[], str],
        state: Callable[[], AgentState],
        progress: Callable[[], tuple[int, int, float]],
    ) -> None:
        self._emit = emit
        self._watch = watch
        self._keep = keep
        self._node = node
        self._node_name = config.node_name
        self._state = state
        self._progress = progress
        self._events = 0
        self._began = time.monotonic()
        self._facts = Facts(config.min_nodes, config.max_nodes, config.max_restarts)
        self._hinted: set[str] = set()
        self._sizes: set[int] = set()  # of worlds in which there was something to say
        self._recovery = RecoveryTimer()
        self._left_at = -1  # the step that was reached in the last round with steps that was left

    def tell(self, event: Event) -> None:
        """Lets an event leave; the important ones are kept in the store as well."""
        self._emit(event)
        text = event.kept_message()
        last = self._state().round
        whole_job = isinstance(event, RoundSealed | RoundRecovered)
        rank = last.rank_of(self._node()) if last else -1
        if not text or (whole_job and last and rank != 0):
            return
        self._events += 1
        number = last.number if last else 0
        record = EventRecord(time.time(), event.name, number, self._node_name, text)
        self._keep(event_key(rank, self._events), record)

    def note(self, note: Note) -> None:
        """Takes in what a worker has noted."""
        fields = {**note.fields, "rank": note.rank, "round": note.round}
        noted = read(note.name, fields, NotedEvent)
        self._facts = self._facts.heard(noted)
        match noted:
            case StepFirst():
                self._first_step(noted)
            case DataShuffles() | StateLacks() | TrainerUnadapted():
                self.give_hints()
            case CheckpointCommitted():
                if self._watch is not None:
                    self._watch(noted)
            case CheckpointResumed():
                self.tell(self._with_reached(noted))
            case _:
                self.tell(noted)

    def _with_reached(self, event: CheckpointResumed) -> CheckpointResumed:
        """A worker that resumes does not know how far the job was; its agent does."""
        last = self._state().round
        if last is None or event.reached is not None:
            return event
        return replace(event, reached=step_before_round(self._left_at, last.budget))

    def left(self, step: int) -> None:
        """This node has left a round, in which it had reached this step; -1: none."""
        self._left_at = step if step >= 0 else self._left_at
        self._recovery = self._recovery.left(self._progress()[2])

    # ------------------------------------------------------------ recoveries

    def interrupted(self, *, ordered: bool = False) -> None:
        """There is a sign that the round is about to end.

        Args:
            ordered: it is an order to leave the round, and no late echo of a round before.
        """
        last, before = self._state().round, self._recovery
        number, stepped = last.number if last else 0, self._progress()[2]
        seen = Interruption(number, time.monotonic(), stepped)
        self._recovery = before.noticed(seen, ordered=ordered)
        if before.first is None:
            self._observe(RecoveryBegan)

    def _first_step(self, first: StepFirst) -> None:
        """The first step of a round is done, by the first of our workers that says so."""
        last = self._state().round
        if last is None or first.round != last.number:
            return
        now = time.monotonic()
        interruption, self._recovery = self._recovery.first_step(last.number, now)
        if interruption is None:
            return
        seconds = round(now - interruption.at, 3)
        stalled = round(now - interruption.stepped, 3) if interruption.stepped else None
        self.tell(RoundRecovered(last.number, seconds, first.step, stalled))
        if self._recovery.first is not None:
            self._observe(RecoveryBegan)

    def turned(self) -> None:
        """The agent's main loop has run once more."""
        self._observe(LoopTurned)

    def _observe(self, kind: type[WorkerProgress]) -> None:
        if self._watch is not None:
            self._watch(kind(*self._progress()))

    # ------------------------------------------------------------ hints

    def give_hints(self) -> None:
        """Says what is plainly wrong with the job: once, and not on each node."""
        state = self._state()
        if state.phase is not Phase.RUNNING or state.round is None or state.group_rank != 0:
            return
        self._sizes.add(state.round.world_size)
        facts = replace(
            self._facts,
            resized=len(self._sizes) > 1,
            machines=len({member.address for member in state.round.members}),
            seconds=time.monotonic() - self._began,
            counts=self._progress()[0] >= 0,
        )
        for about, text in hints(facts).items():
            if about not in self._hinted:
                self._hinted.add(about)
                self.tell(Hint(about, text))
