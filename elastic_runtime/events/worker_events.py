"""Events of worker processes and of the fork server that starts them."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime import errors
from elastic_runtime.events.event import ERROR, WARNING, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

_OURS = frozenset(
    name
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, errors.ElasticError)
)


@dataclass(frozen=True)
class _WorkerEnded(Event):
    level = ERROR
    whole_job = False

    rank: int
    exit_code: int
    local_rank: int | None = None
    reason: str = ""
    echo: bool = False
    by_agent: bool = False


@dataclass(frozen=True)
class WorkerFailed(_WorkerEnded):
    """A worker has ended with an error or an exit code other than 0."""

    name = "worker.failed"
    sentence = "rank {rank} failed: {reason}"

    def message(self) -> str:
        """Which rank failed and why; "" if it is said elsewhere."""
        if self.echo:  # it only says that a peer went away, which that peer's node reports
            return ""
        named = f"worker {self.rank}"
        reason = self._words()["reason"].removeprefix(f"{named}: ")
        if reason.partition(":")[0] in _OURS:
            return ""  # the worker has said it in one line, and the command ends with it
        if reason.startswith((f"{named} ended ", f"{named} cannot ")):
            return f"rank {self.rank} {reason.removeprefix(f'{named} ')}"
        why = f": {reason}" if reason else f" with code {self.exit_code}"
        return f"rank {self.rank} failed{why}"


@dataclass(frozen=True)
class WorkerKilled(_WorkerEnded):
    """A signal has ended a worker, or the machine has (such as its OOM killer)."""

    name = "worker.killed"
    level = WARNING
    sentence = "rank {rank} was killed by {exit_code}"

    def message(self) -> str:
        """Which rank was killed and by which signal; "" if it was by the agent, which has said
        why."""
        if self.by_agent:
            return ""
        names = {-number.value: number.name for number in signal.Signals}
        by = f" by {names[self.exit_code]}" if self.exit_code in names else ""
        return f"rank {self.rank} was killed{by}"


@dataclass(frozen=True)
class WorkersReplaced(Event):
    """In place: workers are killed and replaced."""

    level = WARNING
    whole_job = False

    why: str
    local_ranks: Sequence[int] | None = None
    ranks: Sequence[int] | None = None

    def _subject(self) -> str:
        several = len(self.ranks or ()) > 1
        return f"{'each of ranks' if several else 'rank'} {self._words()['ranks']}"


@dataclass(frozen=True)
class WorkersBusy(Event):
    """In place: workers have been busy with what ``state.at`` calls, or with ``elastic.busy``, for
    longer than ``--rejoin-timeout``. No step is expected meanwhile, so that nothing ends it."""

    name = "workers.busy"
    sentence = "busy for {seconds} s, and no step is expected: {where}"
    whole_job = False

    seconds: int
    where: str


@dataclass(frozen=True)
class WorkerStuck(WorkersReplaced):
    """In place: workers do not leave a broken round, or make no progress for too long, and are
    killed and replaced."""

    name = "worker.stuck"
    sentence = "rank {ranks} is stuck: {why}; being replaced"

    def message(self) -> str:
        """Which ranks do not leave a broken round, and why."""
        return f"{self._subject()} is stuck: {self._words()['why']}; being replaced"


@dataclass(frozen=True)
class WorkerHangs(WorkersReplaced):
    """In place: no step for ``--hang-timeout``. With ranks: those hold up all others, and are
    killed and replaced. Without: all wait for each other, and leave the round."""

    name = "worker.hangs"
    sentence = "rank {ranks} {why}; being replaced"

    def message(self) -> str:
        """Which ranks have hung, and where."""
        why = self._words()["why"]
        return f"{self._subject()} {why}; being replaced" if self.ranks else why


@dataclass(frozen=True)
class WorkerWaits(Event):
    """The machine lacks the resources to start a worker; the start is tried again."""

    name = "worker.waits"
    level = WARNING
    sentence = "rank {rank} cannot be started yet: {why}; trying again for {seconds}"
    whole_job = False

    rank: int
    why: str
    seconds: float


@dataclass(frozen=True)
class WorkersCold(Event):
    """Workers are started without what the fork server imports for all of them."""

    name = "workers.cold"
    level = WARNING
    sentence = "workers start without imported modules, seconds slower each: {why}"
    whole_job = False

    why: str


@dataclass(frozen=True)
class PreloadFailed(Event):
    """The fork server cannot import a module that ``--preload`` names."""

    name = "preload.failed"
    level = WARNING
    sentence = "--preload: {module} cannot be imported, and workers start without it: {why}"
    whole_job = False

    module: str
    why: str


@dataclass(frozen=True)
class ForkServerDied(Event):
    """The fork server has ended, and its workers with it; the agent starts another one."""

    name = "server.died"
    level = WARNING
    sentence = "the fork server died ({why}); another one starts"
    whole_job = False

    why: str


@dataclass(frozen=True)
class ForkServerWaits(Event):
    """The machine lacks the resources to start the fork server; the start is tried again."""

    name = "server.waits"
    level = WARNING
    sentence = "the fork server cannot be started yet: {why}; trying again for {seconds}"
    whole_job = False

    why: str
    seconds: float
