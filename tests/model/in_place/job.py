"""A job in place, played with the real decisions: who goes on from what, what is saved and pruned.

The real ``choose``, ``may_be_behind``, ``resume_candidates``, ``SaveTerm`` and retention decide;
the model moves processes through rounds, steps, saves and faults, one small event after the other,
and checks:

1. Nothing that is saved is lost: a round goes on from at least as many steps as the newest whole
   checkpoint has, unless that was found damaged.
2. No step is lost that a member of the last round in which anybody trained holds clean.
3. All ranks are alike when a round begins, and each step counts once.
4. Only what is part of the present state is ever deleted.
5. Nobody who goes on is told that the storage belongs to somebody else.
6. Nothing is begun anew while there is something to go on from.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest, newest_first
from elastic_runtime.checkpoint.load import newest_state
from elastic_runtime.checkpoint.storage import retention
from elastic_runtime.errors import CheckpointError
from elastic_runtime.worker.recovery import recovery_source
from elastic_runtime.worker.recovery.recovery_source import (
    MemoryCondition,
    RecoveryKind,
    StateVersion,
)
from tests.model.clockwork import Violation
from tests.model.in_place.parts import ModelStorage, Process, Save, process, steps_of

if TYPE_CHECKING:
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice

NEW, CLEAN, DIRTY = MemoryCondition
_MOST = 5  # processes


class Job:
    """One schedule, decided by a seed.

    Args:
        seed: of all chances.
        tracing: keep what happens, for people.
    """

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.chance = random.Random(seed)
        self.trace: list[str] = []
        self._tracing = tracing
        # In some schedules much goes wrong while ranks come together, or while files are read.
        self.rough = self.chance.choice([0.03, 0.03, 0.3])
        self.damages = self.chance.choice([1, 1, 4])
        self.storage = ModelStorage()
        self.rule = retention.Retention(self.chance.choice([None, 1, 1, 2]))
        self.processes = [process(n, self.storage) for n in range(self.chance.randint(1, 3))]
        self.members: list[Process] = []  # of the round that runs; none between two rounds
        self.last: list[Process] = []  # those of the last round that all came into
        self.number = 0
        self.latest = 0  # the number of that round
        self.saves: list[Save] = []
        self.settled = 0
        self.seen: set[str] = set()

    def log(self, text: str) -> None:
        """Something has happened."""
        if self._tracing:
            self.trace.append(f"{self.number}: {text}")

    def run(self, events: int) -> None:
        """Plays so many events.

        Raises:
            Violation: something that must never be.
        """
        for _ in range(events):
            if not self.members:
                self.enter()
            else:
                self.event()

    def event(self) -> None:
        """One thing happens in a round."""
        kinds = [self.train] * 8 + [self.begin_save, self.advance_save] * 3
        kinds += [self.damage] * self.damages
        kinds += [self.fault, self.late, self.wake, self.leave]
        self.chance.choice(kinds)()

    # ------------------------------------------------------------ rounds

    def reachable(self) -> list[Process]:
        """Those that answer."""
        return [p for p in self.processes if p.alive and not p.silent]

    def enter(self) -> None:
        """A round is sealed, and its ranks come to one state; or a fault hits them before."""
        for silent in [p for p in self.processes if p.alive and p.silent]:
            if self.chance.random() < 0.3:
                silent.silent = False
        here = self.reachable()
        if not any(p in here for p in self.last):
            # Nobody of the last round is at hand: those who do not answer are waited for, fenced.
            for one in self.last:
                one.alive = False
        if len(here) < _MOST and (not here or self.chance.random() < 0.4):
            here.append(process(len(self.processes), self.storage))
            self.processes.append(here[-1])
        survivors = [p for p in self.last if p in here]
        others = [p for p in here if p not in survivors]
        self.chance.shuffle(others)
        chosen = [*survivors, *others][: self.chance.randint(1, _MOST)]
        self.number += 1
        self.log(f"round of {[p.number for p in chosen]}")
        self.settle(chosen)

    def settle(self, chosen: list[Process]) -> None:
        """All ranks come to one state."""
        statuses = [p.rank_status(self.number) for p in chosen]
        self.log(f"statuses {statuses}; {steps_of(self.storage.whole)}")
        choice = recovery_source.choose(statuses)
        newest = self.storage.newest()
        held = [p for p in chosen if p.alike == self.latest and p.condition is CLEAN]
        least = max([p.step for p in held], default=0)
        if newest is not None:
            least = max(least, newest.step)
        asked = choice.kind is not RecoveryKind.MEMORY or recovery_source.may_be_behind(statuses)
        if asked:
            found = self.load(choice.in_memory, chosen)
            if found is not None:
                self.finish(chosen, None, least)
                return
        if choice.kind is RecoveryKind.LOST or (
            choice.kind is RecoveryKind.FRESH and self.storage.whole
        ):
            if newest is not None:
                raise Violation(f"lost, and {newest.name} is there")
            for one in chosen:
                one.alive = False  # the job says so, and ends; another one begins
            self.last = []
            return
        if not self.spread(chosen, choice):
            return
        self.finish(chosen, replace(choice, asked=asked), least)

    def load(self, over: StateVersion | None, chosen: list[Process]) -> CheckpointId | None:
        """What ``LatestStateLoader.load`` does."""
        floor = None if over is None else CheckpointId(*over)
        stored = [one for one in newest_first(self.storage.names()) if one in self.storage.whole]
        for candidate in newest_state.resume_candidates([], stored, floor):
            if candidate.which in self.storage.unreadable:
                self.storage.passed.add(candidate.which)
                for one in chosen:
                    one.term.pass_over(candidate.which)
                self.seen.add("passed over")
                continue
            self.log(f"loads {candidate.which.name}")
            self.seen.add("loaded" if over is None else "loaded over memory")
            for one in chosen:
                one.term.resume_from(candidate.which)
                one.hold(self.storage.whole[candidate.which])
                one.saved = candidate.which.step
            return candidate.which
        return None

    def spread(self, chosen: list[Process], choice: RecoveryChoice) -> bool:
        """The sources give their state away; False if a fault hits them on the candidate."""
        sources = [chosen[rank] for rank in choice.sources]
        if len({p.history for p in sources}) > 1:
            raise Violation(f"sources differ: {[p.history for p in sources]}")
        for one in sources:
            one.hold(one.history)
        receivers = [chosen[rank] for rank in choice.receivers]
        for _ in receivers:
            if self.chance.random() < self.rough:
                for other in receivers:
                    if other.condition in (NEW, DIRTY):
                        other.history = sources[0].history
                        other.condition = DIRTY  # it was received in place
                self.break_round(chosen, "while the ranks come together")
                return False
        for one in receivers:
            one.alike = choice.round
            one.term.recover_from(CheckpointId(*choice.base), choice.term, take_new_term=True)
            one.hold(sources[0].history)
        return True

    def finish(self, chosen: list[Process], choice: RecoveryChoice | None, least: int) -> None:
        """The round begins, as all ranks are alike; some may hear of a fault before."""
        histories = {p.history for p in chosen}
        if len(histories) != 1:
            raise Violation(f"ranks differ: {histories}")
        (history,) = histories
        self.log(f"goes on from {len(history)}")
        if len(history) < least:
            raise Violation(f"goes on from step {len(history)}, and {least} was held")
        cut = self.chance.random() < self.rough
        for place, one in enumerate(chosen):
            if cut and place:
                continue
            one.alike = one.context.round = self.number
            one.first = not place
            if place:
                one.term.release()
            if choice is not None:
                behind = choice.asked or place not in choice.sources
                one.term.recover_from(CheckpointId(*choice.base), choice.term, take_new_term=behind)
                one.saved = -1
        self.settled += 1
        self.last, self.latest = chosen, self.number
        if cut:
            self.break_round(chosen, "as soon as the first rank is in")
        else:
            self.members = chosen

    def break_round(self, members: list[Process], why: str) -> None:
        """Somebody is lost; the others leave the round wherever they are."""
        victim = self.chance.choice(members)
        kind = self.chance.choice(["killed", "silent", "interrupted"])
        self.log(f"{victim.number} {kind} {why}")
        if kind == "killed":
            victim.alive = False
        if kind == "silent":
            victim.silent = True
        for one in members:
            if kind != "killed" and one.alive and self.chance.random() < 0.05:
                one.alive = False  # a second one
            if one.alive and one.condition is CLEAN and self.chance.random() < 0.04:
                one.condition = DIRTY  # a collective between two optimizers
        self.members = []
        self.abandon()

    # ------------------------------------------------------------ steps

    def train(self) -> None:
        """One step of all ranks, which may be cut off anywhere between collective and commit."""
        cut = self.chance.random() < 0.12
        for one in self.members:
            if cut and self.chance.random() < 0.5:
                one.condition = self.chance.choice([CLEAN, DIRTY, DIRTY])
            else:
                one.hold((*one.history, self.number))
        if cut:
            self.break_round(self.members, "in a step")

    def fault(self) -> None:
        """Between two steps."""
        if self.chance.random() < 0.3:
            self.break_round(self.members, "between two steps")

    def late(self) -> None:
        """A silent first rank goes on where it was, in a save, and does not know of its end yet."""
        for one in self.processes:
            if one.alive and one.silent and one.first and self.chance.random() < 0.5:
                with suppress(CheckpointError):
                    term = one.term.acquire(())
                    self.log(f"{one.number} takes term {term} late")
                self.seen.add("late term")

    def wake(self) -> None:
        """A silent process goes on; it has no say before the next round."""
        for one in self.processes:
            if one.silent and self.chance.random() < 0.5:
                one.silent = False
                self.members = []
                self.abandon()
                self.log(f"{one.number} is back")
                return

    def leave(self) -> None:
        """All members are asked to leave: they save, and end."""
        if self.chance.random() < 0.7:
            return
        self.abandon()
        self.begin_save()
        for save in self.saves:
            save.heard = save.given = {p.number for p in save.by}
            for one in save.by:
                one.term.about_to_save(save.which)
            self.commit(save)
        self.log("all members leave")
        self.seen.add("left")
        for one in self.members:
            one.alive = False
        self.members = []

    # ------------------------------------------------------------ saves

    def begin_save(self) -> None:
        """Rank 0 takes its term and says which save this is."""
        if self.saves or not self.members or self.members[0].saved == self.members[0].step:
            return
        first = self.members[0]
        try:
            term = first.term.acquire(())
        except CheckpointError as error:
            raise Violation(str(error)) from None
        which = CheckpointId(term, first.step)
        if which in self.storage.unfinished or which in self.storage.whole:
            first.term.use_up()
            return
        self.storage.unfinished.add(which)
        self.log(f"{first.number} begins {which.name}")
        self.saves.append(Save(which, first.history, list(self.members), set(), set()))

    def advance_save(self) -> None:
        """One rank hears of it, or gives its part; or the first one makes it whole."""
        for save in self.saves:
            if save.complete:
                self.commit(save)
                return
            one = self.chance.choice(save.by)
            if one.number in save.heard:
                save.given.add(one.number)
            else:
                save.heard.add(one.number)
                one.term.about_to_save(save.which)

    def commit(self, save: Save) -> None:
        """It is whole from here on; what need not be kept is deleted."""
        self.saves.remove(save)
        try:
            self.storage.check_term(save.which.term)
        except CheckpointError:
            return  # a newer one was taken since
        self.storage.unfinished.discard(save.which)
        self.storage.whole[save.which] = save.history
        self.log(f"{save.which.name} is whole")
        if save.by != self.members:
            self.seen.add("late commit")
            return
        for one in save.by:
            one.saved = save.which.step
        if self.chance.random() < 0.9:
            self.prune(save)

    def prune(self, save: Save) -> None:
        """What ``Saves`` does after a commit."""
        save.by[0].term.set_newer_aside()
        stored = [one for one in newest_first(self.storage.names()) if one in self.storage.whole]
        whole = [Manifest(one.step, one.term, world=1) for one in stored]
        for verdict in retention.apply_retention(self.rule, whole):
            if verdict.keep:
                continue
            history = self.storage.whole.pop(verdict.which)
            self.log(f"deletes {verdict.which.name}")
            self.seen.add("pruned")
            if save.history[: len(history)] != history:
                raise Violation(f"{verdict.which.name} is deleted: {history} in {save.history}")

    def abandon(self) -> None:
        """The round is over: nobody hears of its saves any more, and the first rank may be late."""
        for save in list(self.saves):
            first = save.by[0]
            if save.complete and self.chance.random() < 0.5:
                for one in save.by:
                    one.saved = -1
                kept, self.members = self.members, []
                self.commit(save)  # it is whole, and nobody has heard so
                self.members = kept
                self.seen.add("unheard commit")
            else:
                self.saves.remove(save)
                self.storage.unfinished.discard(save.which)
            first.term.use_up()

    def damage(self) -> None:
        """A checkpoint cannot be read for a while, or can again."""
        if self.storage.unreadable and self.chance.random() < 0.7:
            self.storage.unreadable.pop()
        elif self.storage.whole and self.chance.random() < 0.3:
            self.storage.unreadable.add(max(self.storage.whole))


def play(seed: int, events: int = 150, *, tracing: bool = False) -> tuple[str, Job]:
    """Plays one schedule; returns what was violated, "" if nothing was."""
    job = Job(seed, tracing=tracing)
    try:
        job.run(events)
    except Violation as found:
        return str(found), job
    return "", job
