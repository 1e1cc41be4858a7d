"""The history of a job that recovers in place, and whether it kept the guarantee.

Every process notes what it does (``tests/chaos/in_place_job.py`` writes it), and whoever hurts
the job notes whom it struck. ``violations`` reads both and knows nothing of how the job works,
only what it promises:

    A step whose commit is held by at least one living rank is never lost and never repeated; when
    commit(n) returns anywhere, n-1 is held everywhere. A step committed only on ranks that have
    died is done again, with the same samples. The same holds for a step that a whole checkpoint
    holds, and none is removed unless a newer one holds a step that is no earlier.

A process that was stopped is as good as dead for those it stopped talking to, until it enters a
round again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Entered:
    """A process begins to train in a round; ``at`` in nanoseconds, here and below.

    Attributes:
        step: how many steps are committed; it goes on from there.
        digest: of its parameters and optimizer state.
        tale: what a counter of the script has become; None: it has none.
    """

    at: int
    process: str
    round: int
    rank: int
    world: int
    step: int
    digest: int
    tale: int | None = None


@dataclass(frozen=True, slots=True)
class _AtAStep:
    at: int
    process: str
    round: int
    step: int


@dataclass(frozen=True, slots=True)
class Begun(_AtAStep):
    """A process is about to make a step, with these samples as its share."""

    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Committed(_AtAStep):
    """A process holds the commit of a step, with this digest and tale."""

    digest: int
    tale: int | None = None


@dataclass(frozen=True, slots=True)
class Left(_AtAStep):
    """A process no longer trains in a round."""


Record: TypeAlias = Entered | Begun | Committed | Left


@dataclass(frozen=True, slots=True)
class Strike:
    """What was done to a process: killed, stopped for a while, or its node asked to leave.

    ``until``: when one that was stopped went on, or one that was killed is known to be dead; 0 for
    the others, and if it was at once.
    """

    at: int
    process: str
    kind: Literal["killed", "stopped", "asked"]
    until: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """One process: its name in the records, its pid, the mark of its node, and when it began."""

    name: str
    pid: int
    mark: str
    born: int


@dataclass(frozen=True, slots=True, order=True)
class Kept:
    """A whole checkpoint, as it was seen in its directory.

    Attributes:
        term, step: the greater pair is the newer one.
        made: when it was first seen.
        gone: when it was first seen no more; 0: it is still there.
    """

    term: int
    step: int
    made: int
    gone: int = 0


_KINDS = {"entered": Entered, "begun": Begun, "committed": Committed, "left": Left}


def parse(process: str, line: bytes) -> Record | Process | Strike | None:
    """One line of a process's history; None: nothing that is checked."""
    fields = json.loads(line)
    what = fields.pop("what")
    if what == "born":
        return Process(process, fields["pid"], fields["mark"], fields["at"])
    if what == "struck":  # it was told to, and does it to itself
        return Strike(fields["at"], process, fields["kind"])
    if what == "begun":
        fields["samples"] = tuple(fields["samples"])
    kind = _KINDS.get(what)
    return kind(process=process, **fields) if kind else None


def violations(
    records: Iterable[Record],
    strikes: Sequence[Strike],
    batch: Callable[[int], Sequence[int]],
    kept: Sequence[Kept] = (),
    tale: Callable[[int], int] | None = None,
) -> list[str]:
    """Everything in a history that breaks the guarantee.

    Args:
        records: of all processes, in any order.
        strikes: whom something was done to.
        batch: the samples of a step, from 1, in the run of a single rank.
        kept: all checkpoints that there ever were.
        tale: what the script's counter is after a step in the run of a single rank; None: nothing
            is noted of it.

    Returns:
        One sentence each; none if the history is right.
    """
    rounds = _rounds(records)
    rules = (
        _alike(rounds),
        _in_order(rounds),
        _one_before_held(rounds),
        _one_at_a_time(rounds, strikes),
        _none_vanishes(rounds, strikes),
        _nothing_lost(rounds, strikes),
        _known_states(rounds),
        _nothing_saved_lost(rounds, kept),
        _newest_stays(kept),
        _same_samples(rounds, batch),
        _same_tale(rounds, tale),
    )
    return [sentence for rule in rules for sentence in rule]


@dataclass
class _Round:
    """What was noted in one round, in the order of time."""

    number: int
    entered: list[Entered] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    @property
    def opened(self) -> int:
        """When the first rank began to train."""
        return self.entered[0].at

    @property
    def start(self) -> int:
        """The step that it goes on from."""
        return self.entered[0].step

    @property
    def newest(self) -> int:
        """The furthest step that any rank has committed."""
        return max((one.step for one in self.committed), default=self.start)

    def moments(self) -> list[Entered | Committed]:
        """All that says which step a process holds, in the order of time."""
        return sorted((*self.entered, *self.committed), key=lambda one: one.at)


def _rounds(records: Iterable[Record]) -> list[_Round]:
    rounds: dict[int, _Round] = {}
    for record in sorted(records, key=lambda one: one.at):
        here = rounds.setdefault(record.round, _Round(record.round))
        match record:
            case Entered():
                here.entered.append(record)
            case Begun():
                here.begun.append(record)
            case Committed():
                here.committed.append(record)
            case Left():
                here.left.append(record)
    return [rounds[number] for number in sorted(rounds)]


def _alike(rounds: list[_Round]) -> Iterator[str]:
    """All ranks of a round go on from one step, and hold the same at each step."""
    for here in rounds:
        if len({one.step for one in here.entered}) != 1:
            steps = {f"rank {one.rank}": one.step for one in here.entered}
            yield f"the ranks of round {here.number} go on from different steps: {steps}"
        ranks = sorted(one.rank for one in here.entered)
        worlds = {one.world for one in here.entered}
        if len(worlds) != 1 or len(set(ranks)) != len(ranks) or ranks[-1] >= max(worlds):
            yield f"round {here.number} has ranks {ranks} in worlds of {sorted(worlds)}"
        digests: dict[int, set[int]] = defaultdict(set)
        for one in here.moments():
            digests[one.step].add(one.digest)
        for step, different in digests.items():
            if len(different) > 1:
                yield f"the ranks of round {here.number} hold different states at step {step}"


def _in_order(rounds: list[_Round]) -> Iterator[str]:
    """Rounds only grow, and in each of them a process makes one step after the other."""
    for before, here in pairwise(rounds):
        if here.opened <= before.opened:
            yield f"round {here.number} began before round {before.number}"
    for here in rounds:
        held: dict[str, int] = {}
        for one in here.moments():
            known = held.get(one.process)
            if isinstance(one, Entered) != (known is None):
                yield f"{one.process} entered round {here.number} twice or not at all"
            elif known is not None and one.step != known + 1:
                yield (
                    f"{one.process} committed step {one.step} of round {here.number} right after "
                    f"step {known}"
                )
            held[one.process] = one.step


def _one_before_held(rounds: list[_Round]) -> Iterator[str]:
    """When commit(n) returns anywhere, n-1 is held by every rank of that round."""
    for here in rounds:
        held: dict[int, int] = {}  # by step: how many ranks
        for one in here.moments():
            held[one.step] = held.get(one.step, 0) + 1
            if isinstance(one, Committed) and held.get(one.step - 1, 0) < here.entered[0].world:
                yield (
                    f"{one.process} committed step {one.step} of round {here.number} before all "
                    f"ranks held step {one.step - 1}"
                )


def _one_at_a_time(rounds: list[_Round], strikes: Sequence[Strike]) -> Iterator[str]:
    """No two rounds train at once.

    Who was stopped may wake up in the middle of a step, and commit that one and no other.
    """
    stopped = {one.process: one.at for one in reversed(strikes) if one.kind == "stopped"}
    for number, here in enumerate(rounds):
        newer = min(rounds[number + 1 :], key=lambda other: other.opened, default=None)
        if newer is None:
            continue
        made: list[Begun | Committed] = [*here.begun, *here.committed]
        late = [one for one in made if one.at > newer.opened]
        woken: set[str] = set()
        for one in late:
            excused = stopped.get(one.process, one.at) < one.at and one.process not in woken
            if isinstance(one, Committed):
                woken.add(one.process)
            if not excused:
                yield (
                    f"{one.process} was at step {one.step} of round {here.number} while round "
                    f"{newer.number} trained"
                )


def _none_vanishes(rounds: list[_Round], strikes: Sequence[Strike]) -> Iterator[str]:
    """No process ends in the middle of a round unless something was done to it."""
    struck = {strike.process for strike in strikes}
    for here in rounds:
        left = {one.process for one in here.left}
        for one in here.entered:
            if one.process not in left | struck:
                yield f"{one.process} vanished in round {here.number}, and nobody had struck it"


@dataclass(frozen=True, slots=True)
class _Holding:
    """What a process remembers of its last round."""

    process: str
    since: int  # when it entered that round
    step: int
    digest: int


def _nothing_lost(rounds: list[_Round], strikes: Sequence[Strike]) -> Iterator[str]:
    """A round goes on from the furthest commit that a living process holds, and its state."""
    holdings: dict[str, _Holding] = {}
    newest, begun = 0, 0
    for here in rounds:
        alive = [one for one in holdings.values() if not _gone(one, here.opened, strikes)]
        for one in alive:
            if one.step > here.start:
                yield (
                    f"round {here.number} goes on from step {here.start}, but {one.process} "
                    f"held step {one.step}"
                )
            if one.step == here.start and one.digest != here.entered[0].digest:
                yield (
                    f"round {here.number} does not begin with the state that {one.process} "
                    f"held at step {one.step}"
                )
        # A step that all have finished counts as done when nobody lives to hold the one before.
        if here.start > max(newest, min(newest + 1, begun)):
            yield f"round {here.number} goes on from step {here.start}, which nobody has made"
        newest = max(newest, here.newest)
        begun = max([begun, *(one.step for one in here.begun)])
        for said in here.moments():
            since = said.at if isinstance(said, Entered) else holdings[said.process].since
            holdings[said.process] = _Holding(said.process, since, said.step, said.digest)


def _known_states(rounds: list[_Round]) -> Iterator[str]:
    """A round begins with what some rank held when it had committed that step."""
    held: dict[int, set[int]] = defaultdict(set)
    for here in rounds:
        before = held[here.start]
        if before and here.entered[0].digest not in before:
            yield (
                f"round {here.number} begins at step {here.start} with a state that nobody had "
                "committed there"
            )
        # What is further was given up with those who held it. It is made once more, and may be
        # finished by all and committed by none before the next round begins with it.
        for given_up in [step for step in held if step > here.start]:
            del held[given_up]
        for one in here.moments():
            held[one.step].add(one.digest)


def _nothing_saved_lost(rounds: list[_Round], kept: Sequence[Kept]) -> Iterator[str]:
    """A round goes on from no earlier a step than the newest checkpoint holds."""
    for here in rounds:
        there = [one for one in kept if one.made < here.opened and not 0 < one.gone < here.opened]
        newest = max(there, default=None)
        if newest is not None and here.start < newest.step:
            yield (
                f"round {here.number} goes on from step {here.start}, but the checkpoint of step "
                f"{newest.step} and term {newest.term} was there"
            )


def _newest_stays(kept: Sequence[Kept]) -> Iterator[str]:
    """A checkpoint goes only when a newer one is there that is as far."""
    for lost in kept:
        if not lost.gone:
            continue
        there = [one for one in kept if one.made <= lost.gone and not 0 < one.gone <= lost.gone]
        if not any(one > lost and one.step >= lost.step for one in there):
            left = "".join(f", only step {one.step} of term {one.term}" for one in there[-1:])
            yield (
                f"the checkpoint of step {lost.step} and term {lost.term} was removed, and nothing "
                f"as far was left{left}"
            )


def _same_tale(rounds: list[_Round], tale: Callable[[int], int] | None) -> Iterator[str]:
    """A counter of the script is what it is in a run of one rank."""
    for here in rounds if tale is not None else ():
        for one in here.moments():
            if tale is not None and one.tale != tale(one.step):
                yield (
                    f"{one.process} had another counter at step {one.step} of round {here.number}"
                )


def _gone(holding: _Holding, moment: int, strikes: Sequence[Strike]) -> bool:
    """Whether what a process remembers is out of reach for the others at a moment.

    Who is asked to leave does so at a step of all ranks, unless something else is done meanwhile.
    """
    before = [strike for strike in strikes if strike.at < moment]
    mine = [strike for strike in before if strike.process == holding.process]
    mine = [strike for strike in mine if holding.since < max(strike.at, strike.until)]
    others = any(s.process != holding.process and holding.since < s.at for s in before)
    return any(strike.kind != "asked" or others for strike in mine)


def _same_samples(rounds: list[_Round], batch: Callable[[int], Sequence[int]]) -> Iterator[str]:
    """Every step has the samples of a run with one rank, also when it is done again."""
    for here, later in zip_longest(rounds, rounds[1:]):
        rank_of = {one.process: one.rank for one in here.entered}
        shares: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
        for one in here.begun:
            shares[one.step][rank_of[one.process]] = one.samples
        done = max(here.newest, later.start if later else 0)
        for step, parts in shares.items():
            samples = [sample for _, part in sorted(parts.items()) for sample in part]
            expected = list(batch(step))
            whole = step <= done
            if samples != expected if whole else not set(samples) <= set(expected):
                yield f"step {step} of round {here.number} had samples {samples}, not {expected}"
