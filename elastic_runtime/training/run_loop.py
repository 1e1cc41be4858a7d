"""What ``elastic.run`` does: it brings all ranks to one state, and calls a training function.

In the restart form that happens once in a process: a fault restarts it. In place every change of
the world goes the same way, whatever has caused it::

    Enter ─▶ connect ─▶ one state on all ranks ─▶ train(world) ─▶ returned on all ranks
               ▲                                     │
               └── Left ◀── groups taken apart ◀─────┘ a peer is gone, an interrupt, a change

A planned change happens at a commit that all ranks agree on. A fault interrupts the ranks wherever
they are, and all continue from the newest commit that any of them has.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist

from elastic_runtime.errors import UsageError
from elastic_runtime.events.round_events import (
    RegroupChosen,
    RoundEntered,
    RoundError,
    TrainReturnedAlone,
)
from elastic_runtime.events.state_events import DataShuffles, DutyUnknown, StateUnfit
from elastic_runtime.limits import REPLICA_CHECKS_UNTIL, RETURN_PATIENCE
from elastic_runtime.protocol.messages import (
    EXIT_WORKER_LEFT,
    HANG,
    Ask,
    Change,
    Dismiss,
    Enter,
    Heard,
    Interrupt,
    Left,
    Message,
    Nearby,
    Ready,
    Returned,
    Trained,
)
from elastic_runtime.system import tcp_keepalive, torch_private
from elastic_runtime.training.state import TrainingStopped
from elastic_runtime.training.train_signature import check_signature
from elastic_runtime.worker.agreement import NOTHING_FORESEEN, Agreement, Foreseen, Wish
from elastic_runtime.worker.context import WorkerContext, context, spares_groups
from elastic_runtime.worker.fast_exit import EndedOnRequest, end_on_request
from elastic_runtime.worker.groups.group_disposal import drop_later
from elastic_runtime.worker.groups.regrouping import choose_regrouping
from elastic_runtime.worker.groups.round_ranks import RankInRound, Ranks
from elastic_runtime.worker.groups.store_clients import Stores
from elastic_runtime.worker.loop_hints import (
    NOTHING_LEFT,
    STOPPED_BEFORE,
    VALUES_DIFFER,
    tell_once,
)
from elastic_runtime.worker.missing_parts import MissingParts, report
from elastic_runtime.worker.one_world_samplers import sampler_of_one_world
from elastic_runtime.worker.peers import GlooGroups, Peers
from elastic_runtime.worker.recovery import error_classification, thread_inspection
from elastic_runtime.worker.recovery.common_state import EarlierRounds, StateRecovery
from elastic_runtime.worker.recovery.error_classification import WorldChanged
from elastic_runtime.worker.recovery.optimizer_gate import OptimizerGate
from elastic_runtime.worker.recovery.replica_check import ReplicaCheck
from elastic_runtime.worker.round_breaks import begin_break, end_break, end_breaks
from elastic_runtime.worker.step_source import training
from elastic_runtime.worker.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.checkpoint.checkpointer import Checkpointer
    from elastic_runtime.events.event import NotedEvent
    from elastic_runtime.training.state import State

T = TypeVar("T")


class _Done(NamedTuple):
    value: Any


class _Out(NamedTuple):
    """The round is left, where it is ``planned`` by all ranks at this commit."""

    planned: bool
    reason: str


# How long a rank whose collective has failed waits for its agent to say why, in seconds.
_REASON_TIMEOUT = 1.0

_ran = False


def train_to_end(
    train: Callable[[World], T],
    state: State,
    saver: Checkpointer | None,
    *,
    in_place: bool,
    start_over: bool = False,
    strict: bool = True,
) -> T:
    """What ``elastic.run`` does; see there.

    Raises:
        UsageError: it was called twice, or in place ``init_process_group`` before it; or everything
            that was committed is lost.
        Exception: whatever ``train`` raises, unless a fault of another rank has caused it.
    """
    check_signature(train)
    try:
        with begun(state, saver, in_place=in_place, start_over=start_over, strict=strict) as loop:
            value: T = loop.run(train)
            return value
    except Exception as error:
        error.__traceback__ = thread_inspection.in_script(error.__traceback__)
        raise


@contextmanager
def _refusing_success(state: State) -> Iterator[None]:
    """Within the block no script can end its process as if training were over.

    Raises:
        UsageError: it has called ``sys.exit()``: the last steps are not saved then, and other ranks
            wait for this one.
    """
    try:
        yield
    except SystemExit as end:
        if end.code or isinstance(end, EndedOnRequest):
            raise
        raise UsageError(
            f"sys.exit() ended the process in the middle of training, after step {state.step}, and "
            "the last steps are not saved: return from train on all ranks, or call state.stop()"
        ) from None


@contextmanager
def begun(
    state: State,
    saver: Checkpointer | None,
    *,
    in_place: bool,
    start_over: bool = False,
    strict: bool = True,
) -> Iterator[RunLoop]:
    """Within the block a State may be trained, once in a process."""
    global _ran
    if _ran:
        raise UsageError(
            "elastic.run was called twice in this process; put both loops into one train(world)"
        )
    if in_place and dist.is_available() and dist.is_initialized():
        raise UsageError(
            "init_process_group() was called before elastic.run, which makes the process group "
            "itself, and again after each change: remove the call, or what makes it (Accelerator())"
        )
    state.refuse_idle_duties()
    _ran = True
    here = context()
    if in_place:
        torch_private.keep_versions_in_ddp()
        torch_private.tend_groups(tcp_keepalive.tended)
        torch_private.spare_groups(spares_groups)
    if in_place or state.is_entrusted:
        state.keep_in_memory()
    state.watch_optimizers()
    loop = RunLoop(state, saver, here, in_place=in_place, start_over=start_over, strict=strict)
    try:
        with here.running_in_place() if in_place else nullcontext():
            yield loop
    finally:
        loop.end()
        end_breaks()
        if saver is not None:
            saver.detach()


class RunLoop:
    """One call of ``elastic.run``, or one block of ``State.resumed``."""

    def __init__(
        self,
        state: State,
        saver: Checkpointer | None,
        here: WorkerContext,
        *,
        in_place: bool,
        start_over: bool,
        strict: bool,
    ) -> None:
        self._state = state
        self._saver = saver
        self._train: Callable[[World], Any] = lambda world: None
        self._here = here
        self._in_place = in_place
        self._strict = strict
        self._recovery = StateRecovery(
            state, saver, self._note, start_over=start_over, strict=strict
        )
        self._stores = Stores()
        self._regrouping = choose_regrouping(self._stores, here.regroup)
        self._orders: queue.SimpleQueue[Enter | Dismiss] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ranks: Ranks | None = None
        self._broken = 0  # the newest round that was called broken
        self._why = ""  # it was called broken
        self._thrown = 0  # the newest round out of which an exception was thrown in the main thread
        self._change: Change | None = None
        self._entered = False  # a round
        self._released = saver is None  # no other rank needs the state in this memory
        self._main = threading.get_ident()
        # None once the first steps are over.
        self._missing_parts: MissingParts | None = MissingParts(state)

    def run(self, train: Callable[[World], Any]) -> Any:
        """Calls the function, again after each change of the world; gives what it returns."""
        self._train = train
        if self._in_place and self._here.has_agent:
            return self._run_in_rounds()
        with self.one_world() as (commit, world):
            with error_classification.explained():
                return commit.train(world)

    # ------------------------------------------------------------ one world in a process

    @contextmanager
    def one_world(self) -> Iterator[tuple[Commit, World]]:
        """Within the block the State may be committed, in the world of the launcher.

        At its end all ranks have trained, what is owed then is done, and the last state is saved.
        """
        world = World.of_environment(os.environ)
        made = self._connect()
        try:
            group = _another_group()
            gloo = GlooGroups(group, _another_group, lambda: False)
            self._state._enter(world)
            if self._state._in_memory:
                self._recovery.recover(gloo, world, EarlierRounds())
            else:
                self._recovery.load_saved(gloo, world)
            end_break(world.rank, world.size)
            commit = Commit(self, group, None)
            with _refusing_success(self._state):  # also of what is owed before and after it
                commit.begin()
                yield commit, world
                commit.until_all_return()
                commit.finish()
        finally:
            self._state.leave_world()
            if made:
                groups = torch_private.all_groups()
                torch_private.end_groups()
                drop_later(groups)

    def _connect(self) -> bool:
        """Connects the ranks, if the script has not done so; whether it had to."""
        if not self._in_place and dist.is_available() and dist.is_initialized():
            return False
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if {"RANK", "MASTER_ADDR"} <= os.environ.keys():
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return True

    # ------------------------------------------------------------ the agent's messages, in a thread

    def _listen(self, message: Message) -> None:
        match message:
            case Enter() | Dismiss():
                self._orders.put(message)
            case Nearby(places):
                self._stores.connect_ahead(places)
            case Interrupt(number, reason):
                with self._lock:
                    self._broken = max(self._broken, number)
                    self._why = reason
                    ranks = self._ranks
                if ranks is not None and ranks.place.round <= number:
                    ranks.interrupt()
            case Change(number):
                # A worker that must leave gets the message of that change twice: once alone, once
                # with all others.
                known = self._change
                if known is None or not (known.goes and known.round == number):
                    self._change = message
            case Ask():
                self._answer()

    def _answer(self) -> None:
        """Reports where the main thread is, and throws it out of a collective of a broken round."""
        collective, where = thread_inspection.of(self._main)
        with self._lock:
            ranks = self._ranks
            if collective and ranks is not None and ranks.interrupted.is_set():
                number = ranks.place.round
                if self._thrown < number:
                    # The script may catch the errors of its collectives and try again for ever. In
                    # one it does not feel the exception: the agent finds it there, and ends it.
                    self._thrown = number
                    thread_inspection.throw(self._main, WorldChanged)
                    collective = False
        self._here.tell(Heard(collective=collective, where=where, busy=self._here.busy_with))

    # ------------------------------------------------------------ rounds

    def _run_in_rounds(self) -> Any:
        """Takes part in one round after the other."""
        self._here.listen(self._listen)
        self._here.shield()
        self._regrouping.rehearse()
        self._state.preallocate()
        begin_break(first=True)
        self._here.tell(Ready())
        while True:
            order = self._orders.get()
            if isinstance(order, Dismiss):
                if order.saves and self._saver is not None and self._state.step:
                    self._save_alone(self._saver)
                self._end()
            outcome = self._take_part(order)
            if isinstance(outcome, _Done):
                return outcome.value
            self._here.tell(
                Left(
                    round=order.round,
                    step=self._state.step,
                    planned=outcome.planned,
                    reason=outcome.reason,
                    released=self._released,
                )
            )
            begin_break()

    def _take_part(self, order: Enter) -> _Done | _Out:
        place = RankInRound(order.round, order.rank, order.world, order.host, order.port, order.key)
        ranks = self._regrouping.ranks(place)
        self._released = self._saver is None
        if self._entered:  # else this process does not know where it will begin
            end_break(place.rank, place.size)
        with self._lock:
            self._ranks = ranks
            broken = self._broken >= order.round
        if broken:
            ranks.interrupt()
        try:
            # When this returns nothing refers to the old groups: its frames are cleared.
            return self._attempt(order, ranks)
        finally:
            self._state.leave_world()
            if why := self._state._leave():
                self._here.note(StateUnfit(self._state.step, why))
            with self._lock:
                self._ranks = None
            ranks.take_apart()

    def _attempt(self, order: Enter, ranks: Ranks) -> _Done | _Out:
        began = time.monotonic()
        try:
            ranks.build()
            return self._train_in(order, ranks, time.monotonic() - began)
        except WorldChanged as change:
            error_classification.forget(change)
            reason = str(change) or "the script was thrown out of a broken round"
            return _Out(planned=not ranks.interrupted.is_set(), reason=reason)
        except Exception as error:
            if not error_classification.is_worlds_fault(error, ranks):
                raise
            reason = error_classification.in_one_line(error, ranks)
            # The agent reports the reason of the first worker that leaves; the others are logged.
            self._here.note(RoundError(reason))
            error_classification.forget(error)
            return _Out(planned=False, reason=reason)

    def _train_in(self, order: Enter, ranks: Ranks, connecting: float) -> _Done:
        world = World.of_order(order)
        group = ranks.group
        assert group is not None
        world.publish()
        incarnation = order.key.rpartition("/")[0]
        self._here.enter(order.round, order.rank, incarnation)
        began = time.monotonic()
        asked = ranks.interrupted.is_set, partial(self._leaves, order.round)
        self._state._enter(world)
        gloo = GlooGroups(group, ranks.another_group, *asked)
        self._recovery.recover(gloo, world, EarlierRounds(incarnation, order.committed))
        end_break(world.rank, world.size)
        recovering = time.monotonic() - began
        if not self._entered:
            self._entered = True
            self._note(RegroupChosen(self._regrouping.name, torch.__version__))
        self._note(RoundEntered(round(connecting, 4), round(recovering, 4)))
        self._stores.keep([(order.host, order.port), *((h, p) for h, p in order.spares)])
        self._stores.connect_ahead(order.spares)
        commit = Commit(self, group, ranks)
        with self._here.in_train():
            commit.begin()
            with error_classification.explained():
                value = commit.train(world)
            self._await_all(commit, order, ranks)
        self._here.tell(Trained(order.round))
        commit.finish()
        self._here.tell(Returned(order.round))
        return _Done(value)

    def _leaves(self, number: int) -> bool:
        change = self._change
        return change is not None and change.round == number and not change.grows

    def _await_all(self, commit: Commit, order: Enter, ranks: Ranks) -> None:
        """Waits until ``train`` has returned on all ranks.

        Raises:
            UsageError: the others wait for this one in a collective of theirs.
        """
        try:
            commit.until_all_return()
            return
        except Exception as error:
            # Another rank may know of the hang first, and closes its connections before the agent
            # has sent the reason to this rank.
            if not isinstance(error, WorldChanged):
                ranks.interrupted.wait(_REASON_TIMEOUT)
            if HANG not in self._why:
                raise
        raise UsageError(
            f"train returned on rank {order.rank} after step {self._state.step}, and others wait "
            "for it in a further step; return on all ranks after the same step: let them decide by "
            "what is the same everywhere, such as state.step"
        )

    def look_for_missing_parts(self) -> None:
        """Reports once, in the first steps, what the script has left out of its State.

        Raises:
            UsageError: it cannot be right.
        """
        if (
            self._missing_parts is not None
            and (found := self._missing_parts.committed()) is not None
        ):
            self._missing_parts = None
            report(found, self._note)

    def end(self) -> None:
        """Leaves nothing behind in torch."""
        if self._missing_parts is not None:
            self._missing_parts.close()
        self._regrouping.close()

    def _note(self, event: NotedEvent) -> None:
        if self._here.rank == 0:
            self._here.note(event)

    def _save_alone(self, saver: Checkpointer) -> None:
        """Saves the state of this process between two rounds, in a world of one rank."""
        group = self._regrouping.alone()
        gloo = GlooGroups(group, _another_group, lambda: False)
        if self._recovery.alone(gloo, World(0, 1, 0, 1, 0, 1, round=self._state._round)):
            saver.save(sync=True)

    def _end(self) -> NoReturn:
        saver = self._saver
        code = EXIT_WORKER_LEFT if saver is not None and saver.saved_step == self._state.step else 0
        self._here.leave_requested.clear()  # it is honoured
        end_on_request(code, has_agent=self._here.has_agent)


def _another_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", group_desc=torch_private.OWN_GROUP)
    assert group is not None
    return group


class Commit:
    """What is done after each commit of one round, and at its end."""

    def __init__(self, loop: RunLoop, group: dist.ProcessGroup, ranks: Ranks | None) -> None:
        self._loop = loop
        self._state = loop._state
        self._duties = loop._state._duties
        self._saver = loop._saver
        self._ranks = ranks
        self._group = group if group.size() > 1 else None
        self._peers = Peers(group)
        waits = self._state._alone is not None
        self._agreement = Agreement(self._group, self._foreseen, waits=waits)
        if self._saver is not None:
            self._saver.count(self._state.step)

    def __call__(self) -> None:
        """Publishes the step, saves if that is due, and leaves the round if all agree to.

        Then what the step has made owed is done.

        Raises:
            WorldChanged: the round ends here for this rank.
            TrainingStopped: training ends here, and nothing else would end the script's loop.
        """
        loop, ranks, state = self._loop, self._ranks, self._state
        step = state.step
        loop._here.report_step(step)
        loop.look_for_missing_parts()
        if state._commits == 1:
            state.look_for_schedules()
        if state._commits == 2 and not state.has_loaders:
            if sampler := sampler_of_one_world(training=True):
                loop._note(DataShuffles(sampler))
        if ranks is not None and ranks.interrupted.is_set():
            raise WorldChanged("the round is broken")
        if self._saver is not None:
            self._saver.count(step)
        agreed = self._agreement.step(partial(self._wishes, Wish.TRAINS))
        if ranks is not None:
            ranks.met = True
        if agreed:  # mostly not; looking for flags is slow
            if Wish.STOP in agreed:
                state.note_stopped()
            if Wish.DUTY in agreed:
                now = time.monotonic()
                state._owe(self._peers.on_first(lambda: self._duties.overdue(now)))
        self._compare_values()
        if self._saver is not None and self._saver.act_on(agreed):
            self._agreement.restart_clock()
        if agreed:
            if Wish.CHANGE in agreed:
                self._leave()
            if Wish.LEAVE in agreed:
                # Without an agent, SIGTERM asks for this.
                self._save_now(step)
                loop._end()
        self.do_owed()
        if state.stopped and not state._loops:
            raise TrainingStopped

    def begin(self) -> None:
        """From now on the State may be committed; what is still owed of the last commit is done."""
        state = self._state
        state._on_commit, state._saver = self, self._saver
        if state._in_memory:
            state._gate = OptimizerGate(partial(error_classification.check_groups, self._ranks))
        state._replica_check = ReplicaCheck(state._parts, state._modules, self._group)
        self.do_owed()

    def train(self, world: World) -> Any:
        """Calls ``train``; what it returns, None if it was stopped."""
        state = self._state
        if (alone := state._alone) is not None:
            alone.resume()
        state.begin_call()
        value = None
        try:
            if not state.stopped or state.has_loaders:
                with training(on=True), _refusing_success(state):
                    value = self._loop._train(world)
        except TrainingStopped:
            pass
        if alone is not None:
            alone.returned()
        return value

    def until_all_return(self) -> None:
        """Waits for the other ranks after ``train`` has returned here.

        Raises:
            WorldChanged: the round ends before.
        """
        state = self._state
        state._on_commit = None
        while True:
            if self._ranks is None:  # in place the agents notice who hangs
                late = partial(self._loop._here.note, TrainReturnedAlone(state.step))
                self._agreement.wait_visibly(RETURN_PATIENCE, late)
            agreed = self._agreement.step(partial(self._wishes, Wish.NOTHING))
            if Wish.CHANGE in agreed:
                self._leave()
            if agreed and Wish.TRAINS not in agreed:
                return
            if self._agreement.alone:
                return

    def finish(self) -> None:
        """Training is over on all ranks: does what is owed then, and saves the last state.

        It is saved before as well: a duty may take longer than somebody has patience, and the last
        steps are not lost with it.
        """
        state, saver = self._state, self._saver
        if state._optimized and not state.is_entrusted:
            raise UsageError(
                f"train has returned after an optimizer's step that was not committed: it does "
                f"not count, what counts ends with step {state.step}, and nothing was saved now, "
                "as the models are further; call state.commit() after each step, also before the "
                "loop is left"
            )
        state.owe_at_end()
        if state.step and not state._commits and state._owed is None:
            tell_once(STOPPED_BEFORE if state.stopped else NOTHING_LEFT, step=state.step)
        saves = saver is not None and state._settings is not None and state.step
        if saves:
            self._save_now(state.step)
        before = state.models_digest() if saves else 0
        self.do_owed()
        if saver is not None:
            # A duty may swap in averaged weights, or set the statistics of a normalization.
            changed = saves and (state.is_ahead or before != state.models_digest())
            if saves and any(self._peers.gather(changed)):
                saver.save_anew()
            saver.wait()

    def do_owed(self) -> None:
        """Has all ranks do what is owed."""
        state, here = self._state, self._loop._here
        while (name := state._owed) is not None:
            before, changed = state.values_digest(), False
            duty = self._duties.get(name)
            if duty is None:
                self._loop._note(DutyUnknown(name, state.step))
            else:
                with here.busy(name), state._doing(name), training(on=False):
                    duty.do()
                self._duties.done(name, time.monotonic())
                changed = self._share(changed=before != state.values_digest())
            state._pay(name, changed=changed)
            self._agreement.restart_clock()

    def _share(self, *, changed: bool) -> bool:
        """Gives all ranks the values of rank 0, and tells them whether one has stopped training.

        Args:
            changed: what was done has changed values here.

        Returns:
            Whether it has on any rank: the ranks must agree on whether there is more to save.
        """
        state, peers = self._state, self._peers
        said = peers.gather([state._stops, state.values_digest(), changed])
        if any(stops for stops, *_ in said):
            state.stop_now()
        if len({digest for _, digest, _ in said}) > 1:
            state.take_values(peers.on_first(state.packed_values))
        return any(changes for *_, changes in said)

    def _compare_values(self) -> None:
        """Tells people of values that differ between ranks, at a few of the first commits."""
        state, number = self._state, self._state._commits
        if self._group is None or not state.has_values or state.is_entrusted:
            return
        if number <= REPLICA_CHECKS_UNTIL and number.bit_count() == 1:
            if len(set(self._peers.gather(state.values_digest()))) > 1:
                tell_once(VALUES_DIFFER)

    def _wishes(self, facts: Wish) -> Wish:
        loop, ranks, state, saver = self._loop, self._ranks, self._state, self._saver
        change = loop._change
        wishes = facts
        if saver is not None:
            wishes |= saver.wishes() & ~Wish.LEAVE
        if state._stops:
            wishes |= Wish.STOP
        if self._peers.rank == 0 and self._duties.overdue(time.monotonic()):
            wishes |= Wish.DUTY
        if ranks is None:
            return wishes | (Wish.LEAVE if loop._here.leave_requested.is_set() else Wish.STAYS)
        if change is not None and change.round == ranks.place.round:
            wishes |= Wish.CHANGE
        if change is None or not change.goes:
            wishes |= Wish.STAYS
        return wishes

    def _foreseen(self) -> Foreseen:
        saver = self._saver
        foreseen = saver.foreseen() if saver is not None else NOTHING_FORESEEN
        if self._peers.rank or not self._duties:
            return foreseen
        return foreseen.or_before(Foreseen(seconds=self._duties.due_in(time.monotonic())))

    def _leave(self) -> NoReturn:
        if self._saver is not None:
            # A rank that was asked to leave since it last voted STAYS counts as leaving, too.
            wishes = self._wishes(Wish.TRAINS)
            agreed = self._agreement.at_once(wishes)
            # A request that comes later is too late: this rank has voted that it stays.
            self._loop._released = Wish.STAYS not in wishes
            if Wish.STAYS not in agreed:
                self._save_now(self._state.step)
        change = self._loop._change
        raise WorldChanged(change.reason if change else "another rank leaves or joins")

    def _save_now(self, step: int) -> None:
        if self._saver is not None:
            self._saver.count(step)
            self._saver.save(sync=True)
