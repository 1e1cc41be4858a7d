"""When workers in place hang, which of them does, and what follows: pure.

A ``HangClock`` knows how long the present step takes, and how long it may. Its time counts from the
moment at which ``train`` was entered in the present round, from the last step of it, or from the
end of a ``busy()`` of the script, whichever is latest. Outside of that no step is expected and no
time counts: ranks that wait for a node, connect, or load do not hang. They may take any time; it is
measured, so that the agent can check whether they are alive.

What the clock finds is acted on here, too: workers are asked where they are, the other members of
the round are probed, and the worker that holds up the others is ended.

These files take part:

- ``worker/context.py``: a worker writes into its progress file which step it has committed, and
  since when the next one is expected (``ProgressFile`` in ``protocol/messages.py``).
- ``agent/workers/worker_group.py``: ``step_progress`` reads the files of all workers of the node.
- ``agent/agent.py``: passes that on in each turn of its loop (``ProgressSeen``).
- this file: all decisions. Timeouts come from ``Timeouts`` (``hang_timeout``, ``rejoin_timeout``),
  fixed limits from ``limits.py``.
- ``training/run_loop.py`` and ``worker/recovery/thread_inspection.py``: answer where a worker is.
- ``rendezvous/core/own/reachability_survey.py``: probes the other members (``LookForMembers``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median_low
from typing import TYPE_CHECKING

from elastic_runtime import defaults
from elastic_runtime.agent.lifecycle.in_place_round import interrupt_round
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AfterRound,
    AgentState,
    Phase,
    Step,
    WorkerPhase,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import (
    Action,
    KillWorkers,
    ProgressSeen,
    SetAlarm,
    TellPeople,
    TellRendezvous,
    TellWorkers,
    WorkerSaid,
)
from elastic_runtime.events.node_events import NodeCutOff
from elastic_runtime.events.round_events import RoundWaits, StepNone
from elastic_runtime.events.worker_events import WorkerHangs, WorkersBusy, WorkerStuck
from elastic_runtime.limits import HANG_FACTOR, HANG_STEPS, LONG_FIRST_STEP, SILENT_WORKER
from elastic_runtime.protocol.messages import HANG, Ask, Heard
from elastic_runtime.protocol.records import CUT_OFF, FAILED, HANGS, LOST, FaultReport, listed
from elastic_runtime.rendezvous.core import membership_events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.rendezvous.core.notices import Surveyed

# What a worker's channel thread needs to answer, in seconds.
_ANSWER = 0.5
# After this time an answer says nothing about where the worker is now.
_OLD_ANSWER = 5.0


# ---------------------------------------------------------------- how long steps take


@dataclass(frozen=True, slots=True)
class NoFirstStep:
    """In place: workers have been in ``train`` for so many ``seconds``, and never made a step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StepOverdue:
    """In place: no step was committed for so many ``seconds``; it may take ``limit``."""

    seconds: float
    limit: float


@dataclass(frozen=True, slots=True)
class NoStepExpected:
    """In place: for long, no step was to be expected of the workers in a round.

    Attributes:
        seconds: for so long.
        where: where they are, for people.
    """

    seconds: float
    where: str


Finding = NoFirstStep | NoStepExpected | StepOverdue


BUSY = "busy"  # with something else than a step, as the script says


@dataclass(frozen=True, slots=True)
class StepProgress:
    """What the workers of a node show of their progress.

    Attributes:
        count: which step of the round that was that one of them has reported last.
        moment: when, in seconds on the monotonic clock.
        expected: since when the next step is expected, on that clock; None: none is, as the ranks
            are in no round, are on their way into ``train``, or are busy with something else.
        in_train: one of them has come to ``train``.
        busy: one of them is there, and busy with something else.
    """

    count: int = 0
    moment: float = 0.0
    expected: float | None = None
    in_train: bool = False
    busy: bool = False


@dataclass(frozen=True, slots=True)
class HangClock:
    """How long the present step takes, and how long it may.

    Attributes:
        hang_timeout: a step may always take so long, in seconds; 0: without limit.
        rejoin_timeout: workers of which no step is expected are left alone for so long, in seconds.
        round: the round that runs.
        began: when the present step began; None: none is expected.
        entered: since when the workers are on their way into ``train``; None: they were there.
        count: the steps of this round so far.
        first: how long the first step took that was ever seen here, from the entry into ``train``.
            What a new process has to do once, such as compiling, is in it; 0.0: none was seen, and
            until then the first one may take any time.
        steps: how long the last steps took, without the first ones of rounds.
        busy: since when a worker has been busy with something else; None: none is.
        disturbed: how long the present step takes is no measure for others: the workers were asked
            where they are, or somebody was busy in the middle of it.
    """

    hang_timeout: float
    rejoin_timeout: float = defaults.REJOIN_TIMEOUT
    round: int = 0
    began: float | None = None
    entered: float | None = None
    count: int = 0
    first: float = 0.0
    steps: tuple[float, ...] = ()
    busy: float | None = None
    disturbed: bool = False

    @property
    def limit(self) -> float:
        """How long the present step may take, in seconds: ``hang_timeout``, or three times as long
        as it usually does, if that is more. The first one of a round may take three times as long
        as the first of all did."""
        usual = median_low(self.steps) if self.steps else 0.0
        return max(self.hang_timeout, HANG_FACTOR * max(usual, 0.0 if self.count else self.first))

    def step_seconds(self, now: float) -> float:
        """For how many seconds a step has been expected; 0.0 if none is."""
        if self.began is None or not self.first or not self.hang_timeout:
            return 0.0
        return now - self.began

    def entering_seconds(self, now: float) -> float:
        """For how many seconds the workers have been on their way into ``train``."""
        return 0.0 if self.entered is None else now - self.entered

    def busy_seconds(self, now: float) -> float:
        """For how many seconds a worker has said that it is busy with something else."""
        return 0.0 if self.busy is None else now - self.busy

    def first_step_seconds(self, now: float) -> float:
        """For how many seconds workers have been in ``train`` here and no step was ever seen."""
        return 0.0 if self.began is None or self.first else now - self.began

    def overdue(self, now: float) -> bool:
        """Whether it is time to ask the workers where they are."""
        return self.step_seconds(now) > self.limit

    def findings(self, now: float) -> tuple[Finding, ...]:
        """What is worth a look, if anything; the same again until it is over."""
        found: list[Finding] = []
        if self.first_step_seconds(now) > LONG_FIRST_STEP:
            found.append(NoFirstStep(self.first_step_seconds(now)))
        entering, busy = self.entering_seconds(now), self.busy_seconds(now)
        if max(entering, busy) > self.rejoin_timeout:
            quiet = NoStepExpected(entering, "not in train")
            found.append(quiet if entering else NoStepExpected(busy, BUSY))
        if self.overdue(now):
            found.append(StepOverdue(self.step_seconds(now), self.limit))
        return tuple(found)

    def after(self, progress: StepProgress, number: int, now: float) -> HangClock:
        """The clock after a look at the workers.

        Args:
            progress: what they show.
            number: the round that they are in.
            now: seconds on the monotonic clock.
        """
        since = now if self.busy is None else self.busy
        clock = replace(self, busy=since if progress.busy else None)
        if number != self.round:
            clock = replace(clock, round=number, began=None, entered=now, count=0, disturbed=False)
        if progress.in_train:
            clock = replace(clock, entered=None)
        if progress.expected is None:
            disturbed = clock.disturbed or clock.began is not None
            return replace(clock, began=None, disturbed=disturbed)
        began = progress.expected if clock.began is None else clock.began
        if progress.moment > began:
            clock = clock._measured(progress, began)
        clock = replace(clock, began=max(progress.expected, progress.moment))
        return replace(clock, disturbed=clock.disturbed or clock.overdue(now))

    def _measured(self, progress: StepProgress, began: float) -> HangClock:
        """With the time of the steps that were made since ``began``."""
        took = (progress.moment - began) / max(1, progress.count - self.count)
        clock = replace(self, count=progress.count, disturbed=False)
        if not self.first:
            return replace(clock, first=took)
        if self.disturbed or not self.count:
            return clock
        return replace(clock, steps=(*self.steps, took)[-HANG_STEPS:])


def progress_seen(state: AgentState, event: ProgressSeen, now: float) -> Step:
    """Measures how long the present step takes, and acts on what is found."""
    if state.in_place is None:
        return Step(state)
    timeouts = state.settings.timeouts
    clock = state.in_place.inquiry.clock
    clock = clock or HangClock(timeouts.hang_timeout, timeouts.rejoin_timeout)
    clock = clock.after(event.progress, state.round.number if state.round else 0, now)
    step = Step(_inquire(state, clock=clock))
    # A message that waits may be the answer of a worker.
    if event.messages_wait or state.phase is Phase.STOPPING:
        return step
    for finding in clock.findings(now):
        step = act_on(step.state, finding, now).preceded_by(*step.actions)
    return step


def act_on(state: AgentState, finding: Finding, now: float) -> Step:
    """What follows from one finding of the clock."""
    match finding:
        case NoFirstStep():
            return _no_first_step(state, finding, now)
        case NoStepExpected():
            return _no_step_expected(state, finding, now)
        case StepOverdue():
            return _step_overdue(state, finding, now)


# ---------------------------------------------------------------- a round that is whole


def _no_first_step(state: AgentState, event: NoFirstStep, now: float) -> Step:
    """Tells people once that ``train`` runs without any step, and where it is.

    How long the first step may take is not known, so nothing is ended for it.
    """
    inside, inquiry = state.ranks_in(WorkerPhase.IN_ROUND), state.require_in_place().inquiry
    if state.phase is not Phase.RUNNING or not inside or inquiry.no_step_reported:
        return Step(state)
    if not inquiry.asking or inquiry.asked_at <= now - event.seconds:  # that was before ``train``
        return Step(_asked(state, now), (TellWorkers(Ask(), inside),), "no step yet")
    if now < inquiry.asked_at + SILENT_WORKER and not inquiry.answers.keys() >= {*inside}:
        return Step(state)
    where = _places(state, inquiry.answers)
    state = _inquire(state, no_step_reported=True, asking=False)
    return Step(state, (TellPeople(StepNone(round(event.seconds), where)),))


def worker_answered(state: AgentState, event: WorkerSaid, now: float) -> Step:
    """A worker's channel thread says where its main thread is."""
    assert isinstance(event.message, Heard)
    answers = {**state.require_in_place().inquiry.answers, event.local_rank: event.message}
    return Step(_inquire(state, answers=answers))


def _step_overdue(state: AgentState, event: StepOverdue, now: float) -> Step:
    """Finds out which worker holds up all others; their agents find that theirs only wait."""
    inside, last = state.ranks_in(WorkerPhase.IN_ROUND), state.round
    if state.phase is not Phase.RUNNING or not inside or last is None:
        return Step(state)
    if state.require_in_place().interrupted_at is not None:
        return _overdue_in_broken_round(state, event, now)
    inquiry = state.require_in_place().inquiry
    said = {rank: inquiry.answers.get(rank) for rank in inside}
    recently = now < inquiry.asked_at + (_ANSWER if all(said.values()) else SILENT_WORKER)
    old = inquiry.asked_at < max(now - event.seconds, now - _OLD_ANSWER)
    if not inquiry.asking or old:
        if recently or now < inquiry.busy_at + event.limit:
            return Step(state)
        look = TellRendezvous(membership_events.LookForMembers(last.number))
        return Step(_asked(state, now), (TellWorkers(Ask(), inside), look), "no progress")
    alone = last.size == 1
    if recently or (not alone and inquiry.surveyed_at < inquiry.asked_at):
        return Step(state)  # a node that cannot reach the others may be the only healthy one
    state = _inquire(state, asking=False)
    return _kill_guilty(state, event, said) or _all_wait(state, event, said, now)


def _kill_guilty(
    state: AgentState, event: StepOverdue, said: Mapping[int, Heard | None]
) -> Step | None:
    """Ends the workers that neither wait for others nor say what they do; None: there is none."""
    guilty = tuple(
        rank for rank, heard in said.items() if not (heard and (heard.collective or heard.busy))
    )
    if not guilty:
        return None
    where = "; ".join(dict.fromkeys(_hung_at(said.get(rank)) for rank in guilty))
    why = f"{where}: no step for {event.seconds:.0f} s (--hang-timeout)"
    report = TellPeople(WorkerHangs(why, list(guilty)))
    return Step(state, (report, KillWorkers(guilty, why)), why)


def _hung_at(heard: Heard | None) -> str:
    """What a worker that holds up all others did, for people: a predicate to its name.

    Args:
        heard: what it has said of where it is; None: it has not answered.
    """
    return f"hung at {heard.where}" if heard else "hung and does not answer"


def _all_wait(
    state: AgentState, event: StepOverdue, said: Mapping[int, Heard | None], now: float
) -> Step:
    """No worker here is guilty; after twice the limit all ranks wait for each other without end."""
    last = state.round
    assert last is not None
    # As here, a step counts from the end of what somebody is busy with.
    seconds = min(event.seconds, now - state.require_in_place().inquiry.busy_at)
    if seconds < 2 * event.limit or any(heard and heard.busy for heard in said.values()):
        return Step(state, (), "all workers here wait for others")
    where = _places(state, said)
    reason = f"no step for {event.seconds:.0f} s: {HANG} (--hang-timeout): {where}"
    fault = FaultReport(last.number, FAILED, reason, signature=HANGS)
    broken = interrupt_round(state.with_fault(fault), reason, now)
    return broken.preceded_by(TellPeople(WorkerHangs(reason)))


def _places(state: AgentState, said: Mapping[int, Heard | None]) -> str:
    """Where the workers of this node have said that they are, for people."""
    assert state.round is not None
    first = state.round.first_worker(state.group_rank)
    places = [
        f"rank {first + rank} {'waits' if heard.collective else 'is'} at {heard.where}"
        for rank, heard in sorted(said.items())
        if heard
    ]
    return listed(places) if places else "nobody says where"


def surveyed(state: AgentState, event: Surveyed, now: float) -> Step:
    """If members are unreachable the round cannot train, and no worker is replaced for it."""
    last = state.round
    if state.phase is not Phase.RUNNING or last is None or event.round != last.number:
        return Step(state)
    in_place = state.require_in_place()
    inquiry = in_place.inquiry
    if not event.missed:
        busy_at = now if event.busy else inquiry.busy_at
        state = _inquire(state, surveyed_at=now, busy_at=busy_at)
        if not event.busy or not inquiry.asking:
            return Step(state, (), "all members are in reach")
        report = TellPeople(RoundWaits(list(event.busy)))
        return Step(state, (report,), "a worker of another node is busy")
    if in_place.interrupted_at is not None or not in_place.ranks_in(WorkerPhase.IN_ROUND):
        return Step(state)
    name = last.member(state.group_rank).name
    reason = f"{name} does not reach {listed(event.missed)}"
    fault = FaultReport(last.number, LOST, reason, signature=CUT_OFF, consequence=True)
    state = _inquire(state, asking=False).with_fault(fault)
    report = TellPeople(NodeCutOff(reason, list(event.missed)))
    return interrupt_round(state, reason, now).preceded_by(report)


def _no_step_expected(state: AgentState, event: NoStepExpected, now: float) -> Step:
    """Ends workers that do not answer for that long; even a busy one answers."""
    inside, in_place = state.ranks_in(WorkerPhase.IN_ROUND), state.require_in_place()
    patience = max(state.settings.timeouts.rejoin_timeout, SILENT_WORKER)
    if state.phase is not Phase.RUNNING or not inside or in_place.interrupted_at is not None:
        return Step(state)
    inquiry = in_place.inquiry
    if now < inquiry.asked_at + patience:
        return Step(state)
    silent = tuple(r for r in inside if r not in inquiry.answers) if inquiry.asking else ()
    if not silent:
        actions: list[Action] = [TellWorkers(Ask(), inside)]
        if inquiry.asking and event.where == BUSY and event.seconds < 3 * patience:
            where = _places(state, inquiry.answers)
            actions.append(TellPeople(WorkersBusy(round(event.seconds), where)))
        return Step(_asked(state, now), tuple(actions), f"workers that are {event.where}")
    why = f"{event.where} for {event.seconds:.0f} s, and no answer for {patience:.0f} s"
    report = TellPeople(WorkerStuck(why, list(silent)))
    kill = KillWorkers(silent, f"made no progress: {why}")
    return Step(_inquire(state, asking=False), (report, kill), why)


# ---------------------------------------------------------------- a round that is broken


def look_for_stuck_workers(state: AgentState, inside: tuple[int, ...], now: float) -> Step:
    """Workers have not left the broken round in time: asks where they are, ends those that are
    stuck.

    Args:
        state: the present state; the workers were interrupted.
        inside: local ranks of those that are still in the round.
        now: seconds on the monotonic clock.
    """
    inquiry = state.require_in_place().inquiry
    if not inquiry.asking:
        ask = TellWorkers(Ask(), inside)
        return Step(
            _asked(state, now), (ask, SetAlarm(now + _ANSWER)), "asking workers where they are"
        )
    if now < inquiry.asked_at + SILENT_WORKER and not inquiry.answers.keys() >= {*inside}:
        return Step(state, (SetAlarm(now + _ANSWER),), "some have not answered yet")
    stuck = _stuck_workers(state, inside, now)
    actions: list[Action] = []
    if stuck:
        why = "; ".join(dict.fromkeys(stuck.values()))
        actions.append(TellPeople(WorkerStuck(why, list(stuck))))
        actions.append(KillWorkers(tuple(stuck), f"did not leave the broken round: {why}"))
    actions.append(SetAlarm(now + state.settings.look_for_stuck))
    reason = "workers that do not leave the round"
    return Step(_inquire(state, asking=False), tuple(actions), reason)


def _stuck_workers(state: AgentState, inside: tuple[int, ...], now: float) -> dict[int, str]:
    """Which of the workers that were asked where they are will not leave the round, and why."""
    settings, in_place = state.settings, state.require_in_place()
    inquiry, begun = in_place.inquiry, in_place.interrupted_at or now
    # The others do not wait for a node that leaves; the sender of the request waits for its end.
    leaves = state.after_round is AfterRound.LEAVE
    begun = max(begun, state.leave_request.at) if state.leave_request else begun
    patience = settings.timeouts.rejoin_timeout
    patience = min(settings.timeouts.grace, patience) if leaves else patience
    option = "--grace" if leaves else "--rejoin-timeout"
    # All others have waited for it, perhaps in the first step of this process, of which its own
    # agent does not know how long it may take.
    leave_reason = state.facts.leave_reason
    all_wait = leave_reason is not None and HANG in leave_reason.reason
    found = {}
    for rank in inside:
        heard = inquiry.answers.get(rank)
        if heard is None:
            found[rank] = "it does not answer"
        elif heard.collective:
            found[rank] = "it waits for ranks that are gone"
        elif all_wait and not heard.busy:
            found[rank] = f"all others wait for it, while it is at {heard.where} (--hang-timeout)"
        elif inquiry.overdue and not heard.busy:
            found[rank] = (
                f"no step for {inquiry.overdue:.0f} s, and it is at {heard.where} (--hang-timeout)"
            )
        elif now >= begun + patience:
            found[rank] = f"it has come to no commit, and is at {heard.where} ({option})"
    return found


def _overdue_in_broken_round(state: AgentState, event: StepOverdue, now: float) -> Step:
    """Takes note that a step has become a hang in a round that has broken for another reason.

    Before the break a worker may have waited for others for any time, so it counts from there. What
    it says when it is asked next decides; the first time it may have been released just then.
    """
    in_place = state.require_in_place()
    begun, inquiry = in_place.interrupted_at or now, in_place.inquiry
    if now < max(begun, inquiry.busy_at) + event.limit:
        return Step(state)
    if inquiry.asking or inquiry.asked_at < begun:
        return Step(state)
    state = _inquire(state, overdue=event.seconds)
    return Step(state, (), "a worker hangs in a broken round")


def _asked(state: AgentState, now: float) -> AgentState:
    return _inquire(state, asking=True, asked_at=now, answers={})


def _inquire(state: AgentState, **changes: object) -> AgentState:
    """With these changes to what is known of workers that make no progress."""
    in_place = state.require_in_place()
    inquiry = replace(in_place.inquiry, **changes)  # type: ignore[arg-type]
    return replace(state, in_place=replace(in_place, inquiry=inquiry))
